"""The local cloud: spot VMs as process trees on this machine, with real notices and real kills.

config.py      what is offered: pools, prices, delays, capacity, scripted preemptions
driver.py      `LocalCloud`, the `Cloud` protocol over the folders below `directory`
vms.py         all VMs' folders: listing, orders, cleaning up
disk.py        one VM's folder: file names, atomic writes, locks, the doorbell
vm_supervisor.py  one detached process per VM: delays, notices, the kill, the final state
vm_processes.py  the VM's first process as its supervisor sees it
init.py        the VM's first process: starts, restarts and reaps
isolation.py   how far VMs are kept apart on this machine
view.py        what a VM that runs as another user sees of this machine's files
forward.py     TCP out of a VM's network to the master
namespaces.py  the few Linux calls that Python lacks
processes.py   finding and ending process trees
metadata/      the metadata endpoints of AWS, Azure and GCP

Invariants. The listing is the disk: no process holds state that is not there. Whoever holds the
flock on a VM's `lock` decides over that VM; the supervisor inherits it at its birth, so that a free
lock on a VM that has not ended means a dead supervisor. A VM is `terminated` only after its last
process is gone and its disk is wiped. Nothing imported by the supervisor is heavy: it starts in a
tenth of a second, and there is one per VM; so this file and disk.py stay within the standard
library.
"""
