"""Runs on a VM of Azure that has lost its master: deletes it through Azure's API, with the VM's own
identity, because a VM that is only shut down goes on costing. Standard library of any Python 3, and
part of the user data: it works before there is an agent."""

import json
import sys
import time
import urllib.request
from typing import Any

METADATA, API = "http://169.254.169.254/metadata/", "https://management.azure.com"
OTHERS = {
    "AzureUSGovernmentCloud": "https://management.usgovcloudapi.net",
    "AzureChinaCloud": "https://management.chinacloudapi.cn",
}
PAUSES = (5, 10, 20, 40, 60, 60, 60, 60)


def ask(what: str) -> Any:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(METADATA + what, headers={"Metadata": "true"})
    return json.loads(direct.open(request, timeout=30).read().decode())


def delete() -> int:
    vm = ask("instance/compute?api-version=2021-02-01")
    api = OTHERS.get(vm.get("azEnvironment", ""), API)
    of = "identity/oauth2/token?api-version=2018-02-01&resource=" + api + "/"
    bearer = {"Authorization": "Bearer " + ask(of)["access_token"]}
    url = api + vm["resourceId"] + "?api-version=2024-07-01"
    request = urllib.request.Request(url, headers=bearer, method="DELETE")
    return int(urllib.request.urlopen(request, timeout=60).getcode())


def main() -> None:
    for pause in PAUSES:
        try:
            told = f"delete: Azure answers {delete()} to the request to delete this VM"
        except Exception as error:  # nobody else gives this VM back: try on, whatever it was
            told = f"delete: this VM is not deleted: {error!r}"
        else:
            pause = 0
        sys.stdout.write(told + "\n")
        sys.stdout.flush()
        if not pause:
            return
        time.sleep(pause)


if __name__ == "__main__":
    main()
