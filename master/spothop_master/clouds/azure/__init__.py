"""Azure: spot and on-demand VMs of one resource group, in any regions.

What it must guarantee: one launch makes one VM or none, whatever answer gets lost; nothing of ours
stays that our tags do not find; and why a VM is gone is told only where Azure tells it. Rules:

1. `calls` is the only module that imports the SDK, when a call is made first. What is sent is made
   by `requests`, what comes is read by `reading` and `errors`: all three are pure.
2. A VM's name is its launch's token, and it is made by a PUT that is refused where the name is
   taken (If-None-Match). So a launch may be repeated; what is there then was made by it, if the
   digest in its tags is that of the same request.
3. Nobody waits for an operation. A PUT is answered in a second or two and goes on for a minute;
   the listing tells how it goes (`provisioningState`), and of one that failed its instance view
   tells why. The SDK's pollers, which look every 30 s, are never used, and it repeats nothing.
4. Network interface, address and disk are made in the VM's PUT with `deleteOption: Delete`: they
   go with it, whoever deletes it, also one whose creation failed.
5. A VM that is deleted vanishes from listings. So what was listed here is looked for by its name:
   Azure's answer that there is none is the end (a listing may be late). It is listed as ended for
   an hour where it is known why: we asked for it, or the activity log tells. Else it vanishes, and
   the log is asked again by whoever wants to know (`KeepsRecords`).

Roads not taken: scale sets and Compute Fleet choose among pools by themselves, and name VMs by
numbers, not by our tokens. Listing all VMs of a subscription needs rights on all of it; those on
one resource group do for a listing of that. The policy Deallocate keeps a disk that costs money,
and its quota.
"""
