"""A client of Marathon's REST API and of the file service of Mesos agents.

python -m phalanx.launch.backends.marathon.api delete http://marathon:8080 /digits
"""

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
from typing import Self

from phalanx.errors import LaunchError, NotFoundError
from phalanx.launch.kube.manifest import Manifest

_RESPONSE_SECONDS = 30.0
_CHUNK_BYTES = 1 << 20
TOKEN, USER, PASSWORD = "MARATHON_TOKEN", "MARATHON_USER", "MARATHON_PASSWORD"


@dataclass(frozen=True)
class MarathonClient:
    """A client of the Marathon at a URL. Its credentials come from the environment."""

    url: str
    environ: Mapping[str, str]

    @classmethod
    def from_environment(cls, url: str) -> Self:
        return cls(url.rstrip("/"), os.environ)

    def create_group(self, group: Manifest) -> None:
        """Create a group with all its apps; fails if the group exists."""
        self._request("POST", "/v2/groups", group)

    def delete_group(self, name: str) -> None:
        self._request("DELETE", f"/v2/groups/{urllib.parse.quote(name)}?force=true")

    def delete_app(self, name: str) -> None:
        self._request("DELETE", f"/v2/apps/{urllib.parse.quote(name)}?force=true")

    def read_app(self, name: str) -> Manifest:
        found: Manifest = self._request("GET", f"/v2/apps/{urllib.parse.quote(name)}")["app"]
        return found

    def read_framework_id(self) -> str:
        """Return the id under which Mesos knows this Marathon."""
        return str(self._request("GET", "/v2/info").get("frameworkId", ""))

    def explain_wait(self, name: str) -> str:
        """Return what Marathon lacks to start an app, in its words."""
        for entry in self._request("GET", "/v2/queue").get("queue", []):
            if entry.get("app", {}).get("id") == name:
                summary = entry.get("processedOffersSummary", {}).get("rejectSummaryLastOffers", [])
                reasons = [each["reason"] for each in summary if each.get("declined")]
                return ", ".join(reasons) or "no offer has arrived yet"
        return ""

    def _request(self, method: str, path: str, body: object = None) -> Manifest:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **self._authorization()},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_RESPONSE_SECONDS) as response:
                answer: Manifest = json.loads(response.read() or b"{}")
                return answer
        except urllib.error.HTTPError as error:
            raise _make_error(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise LaunchError(f"Marathon at {self.url} does not respond: {reason}") from None

    def _authorization(self) -> dict[str, str]:
        if token := self.environ.get(TOKEN):
            return {"Authorization": f"token={token}"}
        if user := self.environ.get(USER):
            pair = f"{user}:{self.environ.get(PASSWORD, '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}


def read_sandbox(agent: str, framework: str, task: str, offset: int) -> str:
    query = urllib.parse.urlencode(
        {
            "path": f"/frameworks/{framework}/executors/{task}/runs/latest/stdout",
            "offset": offset,
            "length": _CHUNK_BYTES,
        }
    )
    try:
        url = f"{agent}/files/read?{query}"
        with urllib.request.urlopen(url, timeout=_RESPONSE_SECONDS) as response:
            return str(json.loads(response.read())["data"])
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        raise LaunchError(f"{agent} does not serve the output: {error}") from None


def _make_error(error: urllib.error.HTTPError) -> LaunchError:
    """Return Marathon's message, with its details about an invalid object."""
    kind = NotFoundError if error.code == 404 else LaunchError
    try:
        content = json.loads(error.read())
        details = [
            f"{each.get('path', '')}: {', '.join(each.get('errors', []))}"
            for each in content.get("details", [])
        ]
        return kind("; ".join([str(content["message"]), *details]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return kind(f"Marathon responded with {error.code} {error.reason}")


if __name__ == "__main__":
    _, action, url, name = sys.argv
    assert action == "delete"
    MarathonClient.from_environment(url).delete_group(name)
