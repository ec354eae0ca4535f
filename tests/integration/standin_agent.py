"""Stands in for the agent on a local VM: what it sees goes to a report file outside the VM's disk.

Usage: standin_agent.py MODE REPORT --config FILE

MODE  watch    fork a stubborn grandchild, then poll the metadata endpoint until a notice
      crash    exit with code 3 twice, then stay
      release  exit with code 0
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from typing import Any

MODE, REPORT, _, CONFIG = sys.argv[1:]
with open(CONFIG, encoding="utf-8") as file:
    CONFIGURATION = json.load(file)
METADATA = CONFIGURATION["metadata"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def report(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.time(), **facts}) + "\n"
    with open(REPORT, "a", encoding="utf-8") as file:
        file.write(line)


def fetch(method: str, url: str, headers: dict[str, str], body: bytes | None = None) -> str | None:
    return fetch_tagged(method, url, headers, body)[0]


def fetch_tagged(
    method: str, url: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[str | None, str]:
    """The body and its ETag; no body when there is no good answer, as on a busy machine."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with DIRECT.open(request, timeout=5) as answer:
            return str(answer.read().decode()), answer.headers.get("ETag", "")
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        pass
    return None, ""


def notice() -> str | None:
    """What this dialect says of a preemption; None while there is none."""
    if CONFIGURATION["dialect"] == "aws":
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = fetch("PUT", METADATA + "/latest/api/token", ttl) or ""
        path = "/latest/meta-data/spot/instance-action"
        return fetch("GET", METADATA + path, {"X-aws-ec2-metadata-token": token})
    if CONFIGURATION["dialect"] == "azure":
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events = json.loads(fetch("GET", METADATA + path, {"Metadata": "true"}) or "{}")
        time.sleep(0.25)  # more than five calls a second are refused
        return json.dumps(events["Events"][0]) if events.get("Events") else None
    path = "/computeMetadata/v1/instance/preempted"
    flavor = {"Metadata-Flavor": "Google"}
    now, tag = fetch_tagged("GET", METADATA + path, flavor)
    if now == "FALSE":
        # Without the ETag a flip since the call before would not be seen as a change.
        query = f"?wait_for_change=true&timeout_sec=2&last_etag={tag}"
        now = fetch("GET", METADATA + path + query, flavor)
    return now if now == "TRUE" else None


def stubborn_grandchild() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            report("grandchild")
            time.sleep(600)
        os._exit(0)
    os.wait()


def on_sigterm(*_: object) -> None:
    report("sigterm")
    sys.exit(0)


def watch() -> None:
    signal.signal(signal.SIGTERM, on_sigterm)
    stubborn_grandchild()
    report("master", answer=fetch("GET", CONFIGURATION["master"], {}))
    while (seen := notice()) is None:
        time.sleep(0.02)
    report("notice", text=seen)
    if os.path.exists(REPORT + ".acknowledge"):
        event = json.loads(seen)["EventId"]
        body = json.dumps({"StartRequests": [{"EventId": event}]}).encode()
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        while fetch("POST", METADATA + path, {"Metadata": "true"}, body) is None:
            time.sleep(0.25)
    time.sleep(600)


def starts_before() -> int:
    with open(REPORT, encoding="utf-8") as file:
        return sum(json.loads(line)["event"] == "up" for line in file)


report(
    "up",
    pid=os.getpid(),
    ppid=os.getppid(),
    cwd=os.getcwd(),
    config=CONFIGURATION,
    environment=sorted(os.environ),  # noqa: TID251  what a job could read
)
match MODE:
    case "watch":
        watch()
    case "crash":
        if starts_before() <= 2:
            sys.exit(3)
        time.sleep(600)
    case "release":
        sys.exit(0)
