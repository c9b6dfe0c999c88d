"""A server that speaks the API of Kubernetes for the objects of these tests, and nobody behind it.

No controller makes pods and no node runs them: a test does both, in the words of real ones.
"""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"
RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {
        "name": "torch-distributed",
        "labels": {"trainer.kubeflow.org/framework": "torch"},
    },
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "template": {
                                    "spec": {
                                        "containers": [{"name": "node", "image": "pytorch/pytorch"}]
                                    }
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}


class KubernetesServer:
    """Objects by path; `kubeconfig` is a file that leads here, `refuse` what is answered next."""

    def __init__(self, folder: Path) -> None:
        self.objects = {f"{TRAINER}/clustertrainingruntimes/torch-distributed": RUNTIME}
        self.refuse: tuple[int, str] | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                status, value = server.answer(self.command, urlsplit(self.path), body)
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._http.server_port}"
        context = {"cluster": "test", "user": "test", "namespace": "research"}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": "none"}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(configuration))

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method, url, body):
        if self.refuse is not None and method != "GET":
            (code, message), self.refuse = self.refuse, None
            return code, status(code, message)
        if url.path == "/version/":
            return 200, {"gitVersion": "v1.34.1"}
        if method == "POST":
            return self._create(url.path, body)
        if method == "DELETE":
            gone = self.objects.pop(url.path, None)
            return (200, gone) if gone else not_found(url.path)
        if url.path in self.objects:
            return 200, self.objects[url.path]
        if len(url.path.split("/")) % 2 == url.path.startswith("/api/"):
            return not_found(url.path)  # the path of an object, not of a list
        wanted = parse_qs(url.query).get("labelSelector", [""])[0]
        return 200, {"kind": "List", "metadata": {}, "items": list(self._listed(url.path, wanted))}

    def _create(self, path, body):
        name = f"{path}/{body['metadata']['name']}"
        if name in self.objects:
            return 409, status(409, f'"{body["metadata"]["name"]}" already exists')
        body["metadata"].update(
            uid=str(uuid.uuid4()),
            namespace=path.split("/namespaces/")[-1].split("/")[0],
            creationTimestamp="2026-11-24T14:29:26Z",
        )
        self.objects[name] = body
        return 201, body

    def _listed(self, path, selector):
        for name, value in self.objects.items():
            labels = value["metadata"].get("labels", {})
            if name.rpartition("/")[0] == path and (
                not selector or labels.get(selector.partition("=")[0]) == selector.partition("=")[2]
            ):
                yield value


def status(code, message):
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "message": message,
    }


def not_found(path):
    return 404, status(404, f'"{path.rpartition("/")[2]}" not found')
