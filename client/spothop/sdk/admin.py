"""What only admins may do of the SDK: users and their tokens, and what the clouds really hold."""

from __future__ import annotations

from spothop.sdk.http import Http, part
from spothop.wire import (
    CheckView,
    InventoryView,
    NewToken,
    QuotaRequest,
    StrayView,
    TokenView,
    UserView,
)
from spothop.wire.access import RoleName

CHECKS_S = 120.0
"""For the checks of a master's clouds: some twenty calls a region, one after the other."""


class Admin:
    """The part of `Client` that is for admins."""

    _http: Http

    # --- users and tokens ---

    def users(self) -> list[UserView]:
        """By name."""
        return self._http.read(list[UserView], self._http.send("GET", "/users"))

    def add_user(self, name: str, *, role: RoleName = "user") -> NewToken:
        """A new user, with a first token."""
        body = {"name": name, "role": role}
        return self._http.read(NewToken, self._http.send("POST", "/users", body=body))

    def set_disabled(self, user: str, *, disabled: bool) -> UserView:
        """Whether the user's tokens count; jobs train on."""
        path = f"/users/{part(user)}/{'disable' if disabled else 'enable'}"
        return self._http.read(UserView, self._http.send("POST", path))

    def set_quota(self, user: str, request: QuotaRequest) -> UserView:
        """Only the fields that were set of it: the others stay."""
        body = request.model_dump(exclude_unset=True)
        path = f"/users/{part(user)}/quota"
        return self._http.read(UserView, self._http.send("PATCH", path, body=body))

    def tokens(self, *, all: bool = False) -> list[TokenView]:
        """Those that count, or `all` that ever were; newest first."""
        params = {"all": "true"} if all else {}
        return self._http.read(list[TokenView], self._http.send("GET", "/tokens", params=params))

    def create_token(
        self,
        user: str,
        *,
        name: str = "",
        role: RoleName | None = None,
        expires_in_s: float | None = None,
    ) -> NewToken:
        """The only answer that ever holds the token. `role`: what it may do at most."""
        body = {"user": user, "name": name, "role": role, "expires_in_s": expires_in_s}
        return self._http.read(NewToken, self._http.send("POST", "/tokens", body=body))

    def revoke_token(self, token_id: int) -> TokenView:
        """From now on the token does not count, nor do browsers that logged in with it."""
        return self._http.read(TokenView, self._http.send("DELETE", f"/tokens/{token_id}"))

    # --- clouds ---

    def strays(self) -> list[StrayView]:
        """VMs with the master's tag that no row of it owns."""
        return self._http.read(list[StrayView], self._http.send("GET", "/strays"))

    def end_strays(self, *, cloud: str | None = None) -> list[StrayView]:
        """Let the master end those that it holds, of one cloud or of all; the answer names them."""
        params = {} if cloud is None else {"cloud": cloud}
        return self._http.read(
            list[StrayView], self._http.send("POST", "/strays/end", params=params)
        )

    def inventory(self, *, cloud: str | None = None) -> list[InventoryView]:
        """What the clouds themselves list of this master, of one cloud or of all, beside its rows.
        Takes a few seconds for each region."""
        params = {} if cloud is None else {"cloud": cloud}
        answer = self._http.send("GET", "/inventory", params=params, wait_s=CHECKS_S)
        return self._http.read(list[InventoryView], answer)

    def end_inventory(self, cloud: str, *, now: bool = False) -> InventoryView:
        """One step towards the end of everything of this master in a cloud, and what is left: ask
        again until nothing is. Jobs are cancelled after a save; `now`: without."""
        answer = self._http.send(
            "POST",
            f"/inventory/{part(cloud)}/end",
            params={"now": "true" if now else "false"},
            wait_s=CHECKS_S,
        )
        return self._http.read(InventoryView, answer)

    def checks(self, *, cloud: str | None = None) -> list[CheckView]:
        """What the master's cloud accounts lack, of one cloud or of all. Takes a few
        seconds for each region."""
        params = {} if cloud is None else {"cloud": cloud}
        answer = self._http.send("GET", "/checks", params=params, wait_s=CHECKS_S)
        return self._http.read(list[CheckView], answer)
