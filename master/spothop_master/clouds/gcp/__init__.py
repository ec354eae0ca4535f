"""GCP: spot and on-demand VMs of Compute Engine.

What it must guarantee: one launch makes one VM or none, whatever answer gets lost; nothing of ours
stays that our labels do not find; and what Compute Engine says is told in its own words. Rules:

1. A VM's name is derived from the launch's token, and the request id of its insert from the token
   and the bytes that are sent. The request id makes a repeated insert answer with the operation of
   the first one; when that is forgotten, or other words are sent, the name is taken. A name is used
   for one token only, so an id (`ZONE/NAME`) never comes again.
2. An insert is accepted long before it has come to anything: what it is refused for stands in its
   operation. Nobody waits for that; the next listing looks at the operations of all VMs that it
   lacks at once, and tells the refusal (`Vm.error`).
3. A VM that is deleted is in no list any more. That it is over, and why, is told by its operations:
   `delete`, or `compute.instances.preempted`; the first of them is the cause. What was listed here
   before is listed as over for an hour. A master that has just started knows nothing of it, and its
   loops ask for the record (`end_cause`), which says the same.
4. A zone that does not answer (`unreachables`, or a warning in its place) is not empty: its region
   has no listing then.
5. A guest that shuts down leaves a stopped VM, whose disk costs money. It is not over until it is
   deleted.

Road not taken: the package google-cloud-compute. It speaks the same REST, after an import of 2.2 s
(12 s without compiled files) and 148 MB of memory, against 0.4 s and 15 MB for google-auth alone;
its messages cannot say what its installed version does not know yet, and its operations poll the
public endpoint whatever they were told. The API is plain JSON; the hard part, credentials, is left
to google-auth.
"""
