"""A strict fake of Azure on loopback: Resource Manager with the compute provider and what a VM
needs beside it, the activity log, and the Retail Prices API. There is no emulator of these.

What is checked against data that nobody here wrote: the body of a VM, by the types of Microsoft's
own SDK (`schema`). The rest is from the documentation, and so is only as good as its reading.
"""

from fakes.azure.server import Emulator, Fault

__all__ = ["Emulator", "Fault"]
