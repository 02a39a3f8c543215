"""The few calls to Marathon's REST API, and to the files of Mesos' agents.

python -m phalanx.launch.backends.marathon.api delete http://marathon:8080 /digits
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import LaunchError, NotFoundError

_ANSWER_SECONDS = 30.0
_MOST_BYTES = 1 << 20
TOKEN, USER, PASSWORD = "MARATHON_TOKEN", "MARATHON_USER", "MARATHON_PASSWORD"


@dataclass(frozen=True)
class Marathon:
    """Marathon at a URL; who we are is read from the environment and never written down."""

    url: str
    environ: Mapping[str, str]

    @classmethod
    def of_user(cls, url: str) -> Marathon:
        """With MARATHON_TOKEN, or MARATHON_USER and MARATHON_PASSWORD, if they are set."""
        return cls(url.rstrip("/"), os.environ)

    def make_group(self, group: Mapping[str, Any]) -> None:
        """Make a group with all its apps; that there is one already is an error."""
        self._ask("POST", "/v2/groups", group)

    def delete_group(self, name: str) -> None:
        """Remove a group and what runs in it."""
        self._ask("DELETE", f"/v2/groups/{_quote(name)}?force=true")

    def delete_app(self, name: str) -> None:
        """Remove an app and what runs in it."""
        self._ask("DELETE", f"/v2/apps/{_quote(name)}?force=true")

    def app(self, name: str) -> dict[str, Any]:
        """An app with its tasks and its last failure."""
        found: dict[str, Any] = self._ask("GET", f"/v2/apps/{_quote(name)}")["app"]
        return found

    def framework(self) -> str:
        """Under which number Mesos knows this Marathon."""
        return str(self._ask("GET", "/v2/info").get("frameworkId", ""))

    def why_it_waits(self, name: str) -> str:
        """What Marathon lacks to start an app, in its words."""
        for entry in self._ask("GET", "/v2/queue").get("queue", []):
            if entry.get("app", {}).get("id") == name:
                summary = entry.get("processedOffersSummary", {}).get("rejectSummaryLastOffers", [])
                reasons = [each["reason"] for each in summary if each.get("declined")]
                return ", ".join(reasons) or "no offer has come yet"
        return ""

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **self._authorization()},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
                answer: dict[str, Any] = json.loads(response.read() or b"{}")
                return answer
        except urllib.error.HTTPError as error:
            raise _error(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise LaunchError(f"Marathon at {self.url} does not answer: {reason}") from None

    def _authorization(self) -> dict[str, str]:
        if token := self.environ.get(TOKEN):
            return {"Authorization": f"token={token}"}
        if user := self.environ.get(USER):
            pair = f"{user}:{self.environ.get(PASSWORD, '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}


def read_sandbox(agent: str, framework: str, task: str, place: int) -> str:
    """What a task has printed from that place on, from the agent it runs on."""
    query = urllib.parse.urlencode(
        {
            "path": f"/frameworks/{framework}/executors/{task}/runs/latest/stdout",
            "offset": place,
            "length": _MOST_BYTES,
        }
    )
    try:
        url = f"{agent}/files/read?{query}"
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:
            return str(json.loads(response.read())["data"])
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        raise LaunchError(f"{agent} gives no output: {error}") from None


def _quote(name: str) -> str:
    return urllib.parse.quote(name)


def _error(error: urllib.error.HTTPError) -> LaunchError:
    """Marathon's own words, with the details that it gives for an object that is not valid."""
    kind = NotFoundError if error.code == 404 else LaunchError
    try:
        content = json.loads(error.read())
        details = [
            f"{each.get('path', '')}: {', '.join(each.get('errors', []))}"
            for each in content.get("details", [])
        ]
        return kind("; ".join([str(content["message"]), *details]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return kind(f"Marathon said {error.code} {error.reason}")


if __name__ == "__main__":
    _, action, url, name = sys.argv
    assert action == "delete"
    Marathon.of_user(url).delete_group(name)
