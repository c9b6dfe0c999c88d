"""The tables, indexes and views of a store's database.

A record is a row with its JSON text, and columns for what SQL filters, sorts or counts. Browsers of
the database read the views: they have plain names and a unit in each number's name.
"""

SCHEMA_VERSION = 3
"""Increase it with every change of this file: databases of another version are built again."""
ADMISSIBLE = "score_cost is not null and coalesce(score_broken, '[]') = '[]'"
"""Which trials may be best; the same text as in the index, so that SQLite uses it."""
SCHEMA = f"""
begin;
create table studies (
    id text primary key, name text, objective text, strategy text, status text, created_at text,
    version text, study text, summary text, trial_count integer not null default 0,
    measured_count integer not null default 0, launch_count integer not null default 0,
    repeat_count integer not null default 0);
create table journals (study_id text primary key, entry_count integer, byte_count integer);
create table runs (study_id text references studies (id), run text);
create table pending_trials (
    study_id text references studies (id), ordinal integer, pending text,
    primary key (study_id, ordinal));
create table trials (
    study_id text references studies (id), ordinal integer, status text, score_value real,
    score_unit text, score_cost real, score_broken text, failure_kind text, failure_stage text,
    message text, config text, policy_digest text, author text, rationale text, attempts integer,
    started_at text, ended_at text, trial text, primary key (study_id, ordinal));
create table metrics (
    study_id text references studies (id), ordinal integer, name text, value real, unit text,
    better text, version integer, primary key (study_id, ordinal, name));
create table computed_metrics (
    study_id text references studies (id), ordinal integer, name text, value real, unit text,
    version integer, absent text, better text, definition text, computed_at text,
    primary key (study_id, ordinal, name, version));
create table artifacts (
    study_id text references studies (id), ordinal integer, name text, digest text,
    size_bytes integer, primary key (study_id, ordinal, name));
create table removed_files (
    study_id text references studies (id), digest text, removed_at text, rule text,
    primary key (study_id, digest));
create table repeats (
    study_id text references studies (id), series integer, round integer, ordinal integer,
    repeat text, primary key (study_id, series, round, ordinal));
create table exchanges (
    study_id text references studies (id), ordinal integer, digest text, model text, result text,
    input_tokens integer, output_tokens integer, cache_read_tokens integer,
    cache_write_tokens integer, latency_s real, request_count integer,
    primary key (study_id, ordinal));

create index admissible_trials on trials (study_id, score_cost, ordinal) where {ADMISSIBLE};
create index failed_trials on trials (study_id, failure_kind) where failure_kind is not null;
create index studies_by_age on studies (created_at, id);
create index trials_by_score on trials (study_id, score_cost, ordinal);
create index trials_by_policy on trials (study_id, policy_digest, ordinal);

create view newest_metrics as
    select study_id, ordinal, name, version, value, unit, better, absent, computed_at
    from computed_metrics c where version = (select max(o.version) from computed_metrics o
        where o.study_id = c.study_id and o.ordinal = c.ordinal and o.name = c.name)
    and not exists (select 1 from metrics m where m.study_id = c.study_id
        and m.ordinal = c.ordinal and m.name = c.name and m.version > c.version)
    union all select study_id, ordinal, name, version, value, unit, better, null, null
    from metrics m where not exists (select 1 from computed_metrics c where c.study_id = m.study_id
        and c.ordinal = m.ordinal and c.name = m.name and c.version >= m.version);
create view all_trials as
    select s.name as study_name, t.ordinal as trial, t.status, t.config,
        t.score_value as score, t.score_unit as score_unit, t.score_broken as limits_broken,
        t.failure_kind as failure, t.failure_stage as failed_at, t.message,
        round((julianday(t.ended_at) - julianday(t.started_at)) * 86400, 3) as duration_seconds,
        t.attempts as launches, t.author, t.rationale, t.started_at, t.ended_at, t.study_id
    from trials t join studies s on s.id = t.study_id;
create view best_trials as
    select s.name as study_name, s.objective, t.ordinal as trial, t.score_value as score,
        t.score_unit as score_unit, t.config, t.author, t.ended_at, t.study_id
    from studies s cross join trials t on t.study_id = s.id and t.ordinal = (
        select ordinal from trials where study_id = s.id and {ADMISSIBLE}
        order by score_cost, ordinal limit 1);
create view all_studies as
    select s.name as study_name, s.objective, s.strategy, s.status, s.trial_count as trials,
        s.measured_count as measured, s.trial_count - s.measured_count as failed,
        s.launch_count as launches, b.score as best_score, b.score_unit, b.trial as best_trial,
        s.created_at, s.version as cclsearch_version, s.id as study_id
    from studies s left join best_trials b on b.study_id = s.id;
create view failures_by_kind as
    select s.name as study_name, t.failure_kind as failure, t.failure_stage as failed_at,
        count(*) as trials, min(t.ordinal) as first_trial, t.message as first_message, t.study_id
    from trials t join studies s on s.id = t.study_id where t.failure_kind is not null
    group by t.study_id, t.failure_kind, t.failure_stage;
create view files as
    select s.name as study_name, a.ordinal as trial, a.name as file,
        a.size_bytes as size_bytes, a.digest as sha256, a.study_id
    from artifacts a join studies s on s.id = a.study_id;
create view repeated_launches as
    select s.name as study_name, c.ordinal as trial, c.repeat ->> 'purpose' as purpose,
        c.series as after_trials, c.round, c.repeat ->> 'position' as position,
        c.repeat ->> '$.outcome.status' as status, c.study_id
    from repeats c join studies s on s.id = c.study_id;
create view trials_under_way as
    select s.name as study_name, i.ordinal as trial, i.pending ->> '$.policy.author' as author,
        i.pending ->> '$.policy.rationale' as rationale,
        i.pending ->> 'started_at' as started_at, i.study_id
    from pending_trials i join studies s on s.id = i.study_id;
pragma user_version = -{SCHEMA_VERSION};
commit;
"""
"""Fills an empty database, in one transaction, and marks it as not complete."""
