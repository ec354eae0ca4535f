"""The status pages over the real application: login, escaping, what stands on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from fakes import sample_rows
from fakes.http_master import HttpMaster
from spothop.wire import Pool
from spothop_master.security import Role
from spothop_master.store import users
from spothop_master.store.schema import Attempt, Place
from spothop_master.web import session as web_session

pytestmark = pytest.mark.databases

SCRIPT_TAG = re.compile(r"<script[^>]*>")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        with master.services.db.begin() as session:
            sample_rows.tell(session, owner_id=1)
        master.services.logs.append(
            sample_rows.GPT, 3, offset=0, data=sample_rows.log_text().encode()
        )
        master.clock.now = sample_rows.NOW + timedelta(0)
        yield master


def page(master: HttpMaster, path: str, token: str | None = None, status: int = 200) -> str:
    """As a browser that logged in sees it."""
    headers = {**master.cookie(token), "Accept": "text/html,*/*"}
    answer = master.get(path, token="", headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.text


@pytest.mark.parametrize("path", ["/", "/vms", f"/jobs/{sample_rows.GPT}"])
def test_pages_need_a_login(master: HttpMaster, path: str) -> None:
    for headers in ({}, {"Cookie": f"{web_session.COOKIE}=wrong"}):
        answer = master.get(path, token="", headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    bearer_only = master.get(path)
    assert bearer_only.status_code == 303


def test_a_token_in_the_url_is_not_a_login(master: HttpMaster) -> None:
    answer = master.get("/", token="", params={"token": master.admin})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_login_sets_a_cookie_that_scripts_cannot_read(master: HttpMaster) -> None:
    answer = master.post("/login", token="", data={"token": f" {master.admin}\n"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie  # plain http on loopback


def test_the_cookie_is_secure_behind_tls(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, public_url="https://spothop.example") as master:
        answer = master.post("/login", token="", data={"token": master.admin})
        assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "body", [{}, {"token": ""}, {"token": "wrong"}, dict.fromkeys("abcdefghijkl", "x")]
)
def test_a_wrong_token_stays_outside(master: HttpMaster, body: dict[str, str]) -> None:
    answer = master.post("/login", token="", data=body)
    assert answer.status_code == 403
    assert "No user has this token" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_cookie_holds_no_token_and_opens_no_api(master: HttpMaster) -> None:
    cookie = master.cookie()
    secret = cookie["Cookie"].partition("=")[2]
    assert secret != master.admin
    assert master.get("/api/v1/me", token=secret).status_code == 401
    assert master.get("/api/v1/me", token="", headers=cookie).status_code == 401
    token_as_cookie = {"Cookie": f"{web_session.COOKIE}={master.admin}"}
    assert master.get("/", token="", headers=token_as_cookie).status_code == 303


def test_logout_ends_the_session_wherever_its_cookie_is(master: HttpMaster) -> None:
    mine, other = master.cookie(), master.cookie()
    answer = master.post("/logout", token="", headers=mine)
    assert f'{web_session.COOKIE}=""' in answer.headers["set-cookie"]
    assert master.get("/", token="", headers=mine).status_code == 303
    assert master.get("/", token="", headers=other).status_code == 200


def test_a_session_ends_with_its_token_with_its_user_and_with_time(master: HttpMaster) -> None:
    ann, bob, eve = (master.user(name) for name in ("ann", "bob", "eve"))
    cookies = [master.cookie(token) for token in (ann, bob, eve)]
    with master.services.db.begin() as session:
        now = master.clock()
        token = next(token for token, user in users.tokens(session) if user.name == "ann")
        users.revoke(session, token, now=now)
        user = users.find_user(session, "bob")
        assert user is not None
        users.set_disabled(session, user, disabled=True, now=now)
    found = [master.get("/", token="", headers=cookie).status_code for cookie in cookies]
    assert found == [303, 303, 200]
    master.clock.advance(web_session.MAX_AGE.total_seconds() - 1)
    assert master.get("/", token="", headers=cookies[2]).status_code == 200
    master.clock.advance(1)
    assert master.get("/", token="", headers=cookies[2]).status_code == 303


def test_whoever_guesses_tokens_has_to_wait(master: HttpMaster) -> None:
    wrong = [master.post("/login", token="", data={"token": f"x{n}"}) for n in range(11)]
    assert [answer.status_code for answer in wrong] == [403] * 10 + [429]
    right = {"token": master.admin}
    assert "try again in a minute" in master.post("/login", token="", data=right).text
    master.clock.advance(30)
    assert master.post("/login", token="", data=right).status_code == 303


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://master"}, True),
        ({"Origin": "https://public.example"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[no"}, False),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, True),
    ],
)
def test_other_sites_send_no_forms(tmp_path: Path, headers: dict[str, str], passes: bool) -> None:
    with HttpMaster(tmp_path, public_url="https://public.example") as master:
        for path in ("/login", "/api/v1/plan"):
            answer = master.post(path, headers=headers, data={})
            assert (answer.status_code != 403 or "cross_site" not in answer.text) == passes
        assert master.get("/login", headers=headers).status_code == 200


def test_every_answer_says_what_browsers_may_do_with_it(master: HttpMaster) -> None:
    paths = ("/api/v1/jobs", "/api/v1/nothing", "/login", "/healthz", "/static/style.css")
    for path in paths:
        answer = master.get(path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff", path
        kept = path.startswith("/static/")
        assert (answer.headers.get("Cache-Control") == "no-store") != kept, path


def test_the_list_shows_state_step_cost_and_saving(master: HttpMaster) -> None:
    html = page(master, "/")
    for text in ("gpt-small", "5,060", "1.942", "2 emergency", "5 insurance", "66% less so far"):
        assert text in html
    assert "no capacity in 3 pools" in html
    assert html.index("resnet-cifar") < html.index("gpt-small") < html.index("whisper-ft")


def test_a_job_shows_its_whole_story(master: HttpMaster) -> None:
    html = page(master, f"/jobs/{sample_rows.GPT}")
    for text in (
        "attempt 3 trains in us-east-1b",
        "66% less so far than $4.84: the steps that count and one start, at the on-demand price",
        "at step 5,140",
        "2 lives of us-east-1b",
        "step  5060",
        "the kill comes in 120 s",
        "8.9 s",
        "498 MB",
    ):
        assert text in html, text
    assert html.count('class="lane-row"') == 3
    assert html.count('class="preempted"') == 2
    assert 'class="line" d="M0.0,' in html


def test_what_users_write_is_shown_and_never_run(master: HttpMaster) -> None:
    html = page(master, f"/jobs/{sample_rows.GPT}")
    assert sample_rows.HOSTILE not in html
    assert SCRIPT_TAG.findall(html) == ['<script src="/static/live.js" defer>']
    assert html.count("&lt;script&gt;alert(") >= 2  # log and event
    assert r"\u003cscript\u003ealert(" in html  # the job file, as JSON
    assert not re.search(r"\son\w+=|style=|javascript:", html)  # the policy would refuse them


def test_a_job_with_nothing_yet_has_a_page(master: HttpMaster) -> None:
    html = page(master, "/jobs/resnet-cifar-08bd12")
    assert "Nothing was written yet" in html
    assert "lane-row" not in html


def test_vms_show_why_they_ended(master: HttpMaster) -> None:
    html = page(master, "/vms")
    assert html.count("preempted") == 2
    assert "released" in html
    assert "48 s" in html  # allocation


def test_users_see_only_their_own_on_pages_too(master: HttpMaster) -> None:
    bob = master.user("bob")
    assert "gpt-small" not in page(master, "/", bob)
    assert "us-east-1a" not in page(master, "/vms", bob)
    assert "no job" in page(master, f"/jobs/{sample_rows.GPT}", bob, status=404)
    eve = master.user("eve", Role.VIEWER)
    assert "eve (viewer)" in page(master, "/", eve)


def test_errors_are_pages_for_people_and_json_for_machines(master: HttpMaster) -> None:
    html = page(master, "/no/such<b>page", status=404)
    assert "<b>" not in html
    assert master.get("/no/such").json()["error"] == "no_such_route"
    answer = master.get("/api/v1/no", headers={"Accept": "text/html"})
    assert answer.json()["error"] == "no_such_route"


@pytest.mark.parametrize("name", ["style.css", "live.js", "icon.svg"])
def test_static_files_are_served(master: HttpMaster, name: str) -> None:
    assert master.get(f"/static/{name}", token="").status_code == 200


def test_pages_load_nothing_from_elsewhere(master: HttpMaster) -> None:
    for path in ("/", "/vms", f"/jobs/{sample_rows.GPT}"):
        urls = re.findall(r'(?:src|href)="([^"]+)"', page(master, path))
        assert urls
        assert all(url.startswith("/") and not url.startswith("//") for url in urls)


def test_the_signal_that_ended_a_process_is_named(master: HttpMaster) -> None:
    job = "mnist-b77e01"
    assert "signal SIG" not in page(master, f"/jobs/{job}")
    with master.services.db.begin() as session:
        (place,) = session.scalars(select(Place).where(Place.vm_id == "vm-1001"))
        place.exit_signal = 9
    assert "<small>signal SIGKILL</small>" in page(master, f"/jobs/{job}")


def test_a_pool_is_spelled_as_everywhere(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        job = master.joined().job
        (vm,) = master.get("/api/v1/vms").json()["vms"]
        pool = str(Pool.model_validate(vm["pool"]))
        assert pool.count("/") == 3
        for path in ("/", "/vms", "/pools", f"/jobs/{job}"):
            assert pool in page(master, path).replace("<wbr>", ""), path


def test_a_job_that_nothing_protects_says_what_to_add_to_its_script(master: HttpMaster) -> None:
    paths = ("/", f"/jobs/{sample_rows.GPT}")
    assert not any("nprotected" in page(master, path) for path in paths)
    with master.services.db.begin() as session:
        newest = select(Attempt).where(Attempt.job_id == sample_rows.GPT, Attempt.number == 3)
        session.scalars(newest).one().places[0].unprotected = {
            "cause": "no_check",
            "reason": "it has never called check_save()",
            "since": sample_rows.NOW.isoformat(),
        }
    for path in paths:
        assert '<span class="badge s-unprotected">unprotected' in page(master, path)
        assert "it has never called check_save()" in page(master, path)
    assert "if sp.check_save():  # after each step\n    save(&#34;ckpt.pt&#34;)" in page(
        master, paths[1]
    )


def test_what_was_lost_is_at_least_so_much_where_vms_ended_without_a_word(
    master: HttpMaster,
) -> None:
    assert "at least 80" in " ".join(page(master, f"/jobs/{sample_rows.GPT}").split())
    with master.services.db.begin() as session:
        for place in session.scalars(select(Place)):
            place.exit_code = 0
    assert "at least" not in page(master, f"/jobs/{sample_rows.GPT}")


def test_what_was_thinned_or_deleted_is_said_where_it_was(master: HttpMaster) -> None:
    path, logs = f"/jobs/{sample_rows.GPT}", f"/api/v1/jobs/{sample_rows.GPT}/logs"
    assert "thinned after" not in page(master, path)
    master.clock.advance(90_000)
    gone = "this log (5 MB) was deleted on 2027-01-01: old"
    master.services.logs.remove(sample_rows.GPT, gone)
    shown = page(master, path)
    assert "thinned after 1 d: one value in ten, after 30 d one in a hundred" in shown
    assert gone in shown
    answer = master.get(logs)
    assert answer.text == f"{gone}\n"
    assert answer.headers["x-complete"] == "true"
    followed = master.get(logs, params={"offset": 5_000_000})
    assert (followed.text, followed.headers["x-next-offset"]) == ("", "5000000")
    assert master.get(f"/api/v1/jobs/{sample_rows.GPT}").json()["log_tail"] == gone
