"""`spothop bootstrap`: from an empty cloud account to a master that answers, and back.

What it must guarantee: nothing is made that a later run would not find; a run that was killed
between any two calls is gone on with by the next; what is not ours is never changed or removed; and
before anything happens it is shown, with its price.

Rules:

1. Everything carries the tag `spothop-bootstrap` from the call that makes it (buckets: the next).
   What has a name of ours and not the tag is somebody else's, and the plan refuses.
2. A run is a loop: read what is there (`reading`), compare it with what should be (`desired`, and
   `plan` or `removal`: pure), do what can be done now (`acting`), and read again, until nothing is
   left. So making, mending, upgrading and going on are the same thing, and no state is kept here.
3. Within one run no step is done twice: what AWS does not show yet is waited for. A launch has a
   client token besides.
4. The VM is replaced, not changed: it is stopped, which makes its last backup, then terminated; the
   next one restores. The elastic address stays, so VMs and users find the master where it was.

On the VM: `first_boot` (its user data), `on_vm`, `backup`. `software` is what is installed there.

Roads not taken: CloudFormation keeps state of its own, that fails in ways of its own, and cannot
show what it costs; a template that one line of the README applies would still leave the software
and the token to us. An auto scaling group would replace a dead VM without us, but EC2 recovers one
from the failure of its host by itself, and with it there were launch templates to version.
"""
