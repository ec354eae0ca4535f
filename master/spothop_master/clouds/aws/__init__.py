"""AWS: spot and on-demand VMs of EC2.

What it must guarantee: one launch makes one VM or none, whatever answer gets lost; nothing of ours
stays that our tags do not find; and what EC2 says is told in its own words. Rules:

1. `calls` is the only module that imports the SDK, when a call is made first. What is sent is made
   by `requests`, what comes is read by `reading` and `errors`: all three are pure.
2. The SDK repeats nothing. It would try a launch for which there is no capacity again and again,
   because EC2 answers it with HTTP 500, and what is counted as one call would be five.
3. Everything is tagged when it is made, the spot request and the volume too. A listing is asked for
   by tag, in each region; if one region does not answer, there is no listing, because VMs that it
   lacks would count as gone.
4. Requests for spot are one-time. A persistent one would make a new VM when ours is terminated.

Roads not taken: CreateFleet, which chooses among pools by itself, has no user data of its own but
launch templates, which somebody has to make, count and delete. RequestSpotInstances is the old API,
whose requests have no client token of the instance.
"""
