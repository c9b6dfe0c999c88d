"""No key reaches a trial, by its name or by its value; the rest of the environment does."""

from pathlib import Path

import pytest

from records.errors import CclsearchError, StudyError
from records.study import Llm
from search.settings import (
    DEFAULT_URL,
    ProviderError,
    container_image,
    has_key,
    llm_settings,
    scheduler_job,
    scrubber,
    search_environment,
    store_root,
    trial_environment,
)

KEY = "sk-example-0123456789"
KEY_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


@pytest.fixture
def environment(monkeypatch):
    """Give the environment to set, without what this machine may have set for us."""
    for name in (*KEY_VARIABLES, "ANTHROPIC_BASE_URL", "CCLSEARCH_STORE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "anthropic_api_key", "ANTHROPIC_BASE_URL"),
        *("OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("HF_TOKEN", "GITHUB_TOKEN", "PGPASSWORD", "MY_PASSWD", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("SSH_AUTH_SOCK", "SESSION_COOKIE", "Client_Secret"),
    ],
)
def test_what_is_named_like_a_secret_reaches_no_trial(environment, name):
    environment.setenv(name, "anything")
    assert name not in trial_environment()
    assert "anything" not in trial_environment().values()


@pytest.mark.parametrize("variable", KEY_VARIABLES)
@pytest.mark.parametrize("value", [KEY, f"Bearer {KEY}", f"https://user:{KEY}@host/", KEY * 2])
def test_a_copy_of_the_key_reaches_no_trial_under_any_name(environment, value, variable):
    environment.setenv(variable, KEY)
    environment.setenv("HARMLESS", value)
    environment.setenv("KEPT", KEY[:-1])
    assert not any(KEY in passed for passed in trial_environment().values())
    assert trial_environment()["KEPT"] == KEY[:-1]


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME"),
        *("OMP_NUM_THREADS", "TMPDIR", "LANG", "PYTHONHASHSEED", "HF_HOME", "VIRTUAL_ENV"),
    ],
)
def test_what_a_job_needs_is_passed_on(environment, name):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setenv(name, "value")
    assert trial_environment()[name] == "value"


@pytest.mark.parametrize("variable", KEY_VARIABLES)
@pytest.mark.parametrize("word", ["", "ollama"])
def test_a_word_in_the_place_of_a_key_takes_no_variable_from_a_trial(environment, variable, word):
    environment.setenv(variable, word)
    environment.setenv("PATH", "/opt/ollama/bin")
    environment.setenv("EMPTY", "")
    assert trial_environment()["PATH"] == "/opt/ollama/bin"
    assert trial_environment()["EMPTY"] == ""


def test_a_search_of_the_service_gets_the_key_of_the_model_and_no_other_secret(environment):
    passed = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "http://here", "LANG": "C"}
    for name, value in {**passed, "CCLSEARCH_TOKEN": "of the service", "COPY": KEY}.items():
        environment.setenv(name, value)
    given = search_environment()
    assert passed.items() <= given.items()
    assert not {"CCLSEARCH_TOKEN", "COPY"} & given.keys()


@pytest.mark.parametrize("variable", KEY_VARIABLES)
def test_a_model_can_be_asked_when_there_is_a_key(environment, variable):
    assert not has_key()
    environment.setenv(variable, "")
    assert not has_key()
    environment.setenv(variable, KEY)
    assert has_key()
    assert llm_settings(Llm()).api_key.variable == variable


def test_of_two_keys_the_api_key_is_sent_and_without_any_the_message_says_what_to_do(environment):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setenv("ANTHROPIC_AUTH_TOKEN", "another")
    assert llm_settings(Llm()).api_key.reveal() == KEY
    for variable in KEY_VARIABLES:
        environment.setenv(variable, "")
    with pytest.raises(StudyError, match="or ANTHROPIC_AUTH_TOKEN: export it, or use --strategy"):
        llm_settings(Llm())


@pytest.mark.parametrize("key", [" ", "a b", "a\n", "\u00e9"])
def test_a_key_that_no_key_looks_like_is_refused_without_showing_it(environment, key):
    environment.setenv("ANTHROPIC_API_KEY", key)
    with pytest.raises(CclsearchError) as refused:
        llm_settings(Llm())
    assert repr(key) not in str(refused.value)


def test_the_key_is_not_shown_with_the_settings(environment):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    settings = llm_settings(Llm(model="m", timeout_s=5.0, effort="high", thinking_tokens=2048))
    assert KEY not in repr(settings)
    assert settings.api_key.reveal() == KEY
    assert (settings.model, settings.timeout_s) == ("m", 5.0)
    assert (settings.effort, settings.thinking_tokens) == ("high", 2048)


def test_the_user_s_environment_decides_the_address(environment):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    assert llm_settings(Llm()).url == DEFAULT_URL
    assert llm_settings(Llm(base_url=DEFAULT_URL + "/")).url == DEFAULT_URL
    environment.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    assert llm_settings(Llm()).url == "http://127.0.0.1:1"
    assert llm_settings(Llm(base_url="http://127.0.0.1:1/")).url == "http://127.0.0.1:1"


@pytest.mark.parametrize("own", [None, "https://model.example"])
@pytest.mark.parametrize(
    "named", ["http://127.0.0.1:2", "https://model.example.evil", "https://evil/model.example", ""]
)
def test_a_study_cannot_send_the_key_to_another_host(environment, own, named):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    if own is not None:
        environment.setenv("ANTHROPIC_BASE_URL", own)
    with pytest.raises(StudyError, match="export ANTHROPIC_BASE_URL") as refused:
        llm_settings(Llm(base_url=named))
    assert named in str(refused.value)
    assert KEY not in str(refused.value)


def test_the_key_crosses_no_network_unencrypted(environment):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setenv("ANTHROPIC_BASE_URL", "http://model.example:8000")
    with pytest.raises(ProviderError, match=r"unencrypted on its way to model\.example"):
        llm_settings(Llm())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_this_machine_may_be_asked_without_encryption(environment, host):
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setenv("ANTHROPIC_BASE_URL", f"http://{host}:8000")
    assert llm_settings(Llm()).url == f"http://{host}:8000"


def test_the_store_is_the_option_then_the_environment_then_here(environment):
    assert store_root(None) == Path(".cclsearch")
    environment.setenv("CCLSEARCH_STORE", "/elsewhere")
    assert store_root(None) == Path("/elsewhere")
    assert store_root(Path("mine")) == Path("mine")


def test_values_of_secret_variables_are_scrubbed_and_others_are_not(environment, tmp_path):
    secrets = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": "token-of-a-gateway"}
    secrets |= {"DB_PASSWORD": "correct horse"}
    others = {"ANTHROPIC_BASE_URL": "http://model.example", "TOKENIZER_CACHE": str(tmp_path)}
    others |= {"MAX_TOKENS": "1234567890"}
    for name, value in {**secrets, **others, "HOME": "/people/alice"}.items():
        environment.setenv(name, value)
    text = " ".join([*secrets.values(), *others.values(), "/people/alice/x"])
    assert scrubber().text(text) == " ".join(["*** *** ***", *others.values(), "~/x"])


@pytest.mark.parametrize(
    ("name", "told"),
    [("SLURM_JOB_ID", "slurm 7"), ("PBS_JOBID", "pbs 7"), ("LSB_JOBID", "lsf 7")],
)
def test_the_job_of_a_scheduler_is_known_by_its_variable(environment, name, told):
    for known in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"):
        environment.delenv(known, raising=False)
    assert scheduler_job() is None
    environment.setenv(name, "7")
    assert scheduler_job() == told


def test_the_image_of_a_container_is_what_the_environment_tells(environment):
    environment.setenv("APPTAINER_CONTAINER", "/images/torch.sif")
    assert container_image() == "/images/torch.sif"
