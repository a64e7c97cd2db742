"""The page at /ui: open files without anything of the server in them, numbers behind the key, the tree for admins."""

import re
from importlib import resources

from radixlm.observability.journal import Journal
from radixlm.observability.record import RequestRecord
from radixlm.protocol.messages import SchedulerStats
from radixlm.server.ui.routes import FILES
from tests.wire.fake_manager import FakeManager, Script
from tests.wire.serving import eventually, live_server

STATIC = resources.files("radixlm.server.ui").joinpath("static")


def test_the_page_loads_only_its_own_files_and_runs_nothing_inline() -> None:
    with live_server(journal=Journal(), api_key="secret") as live:
        page = live.http.get("/ui")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        named = set(re.findall(r'(?:src|href)="([^"]+)"', page.text))
        assert named and all(name.startswith("ui/static/") for name in named)
        assert not re.search(r"<script[^>]*>[^<]|\son\w+=|style=", page.text)
        for name, kind in FILES.items():
            answer = live.http.get(f"/ui/static/{name}")
            assert answer.status_code == 200 and answer.headers["content-type"] == kind
        assert live.http.get("/ui/static/routes.py").status_code == 404
        assert live.http.get("/ui/static/..%2froutes.py").status_code == 404
        assert "secret" not in page.text


def test_every_file_is_served_and_no_text_becomes_html() -> None:
    there = {path.name for path in STATIC.iterdir()}
    assert there == {*FILES, "index.html"}
    for name in (name for name in there if name.endswith(".js")):
        source = STATIC.joinpath(name).read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3)", source
        ), name
        assert {f"{other}" for other in re.findall(r'from "\./([^"]+)"', source)} <= there


def test_without_the_page_there_is_no_route() -> None:
    with live_server() as live:
        assert [live.http.get(path).status_code for path in ("/ui", "/ui/state", "/ui/tree")] == [404] * 3


def test_keys() -> None:
    with live_server(journal=Journal(), api_key="user", admin_api_key="admin") as live:
        expected = {None: (200, 401, 401), "user": (200, 200, 403), "admin": (200, 200, 200), "other": (200, 401, 401)}
        for key, statuses in expected.items():
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            got = tuple(live.http.get(path, headers=headers).status_code for path in ("/ui", "/ui/state", "/ui/tree"))
            assert got == statuses, key


def test_the_state_shows_running_and_ended_requests() -> None:
    manager, journal = FakeManager(), Journal()
    manager.stats = SchedulerStats(time=1.0, step=4, num_running_reqs=1, decode_tokens_total=9)
    journal.add(
        RequestRecord(
            rid="old",
            stream=True,
            created=1.0,
            sent_s=0.1,
            prompt_tokens=3,
            first_token_s=0.5,
            ended_s=2.0,
            reason="stop",
        )
    )
    manager.script = lambda request: Script(endless=True, pause_s=0.01)
    with (
        live_server(manager, journal=journal) as live,
        live.http.stream("POST", "/generate", json={"text": "hi", "stream": True}),
    ):
        state = live.http.get("/ui/state").json()
        assert state["model"] == "fake-model" and state["stats"]["decode_tokens_total"] == 9
        running, old = state["requests"]
        assert running["ended"] is None and running["prompt_tokens"] == 2
        assert (old["rid"], old["first"], old["ended"], old["reason"]) == ("old", 0.5, 2.0, "stop")
        assert state["latency"]["ttft"] == {"count": 0}  # it ended long ago
    eventually(lambda: not manager.live)


def test_the_tree_has_text_and_no_token_ids() -> None:
    with live_server(journal=Journal()) as live:
        tree = live.http.get("/ui/tree").json()
        assert [node["text"] for node in tree["nodes"]] == ["Hi", "<b"]
        assert tree["nodes"][1]["parent"] == 0 and "head" not in tree["nodes"][0]
        assert (tree["total_nodes"], tree["total_tokens"]) == (9, 99)
