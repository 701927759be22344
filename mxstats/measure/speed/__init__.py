"""Speed of the kernels on a GPU: against a copy of the same bytes, and against what torch makes.

Its modules are imported by name, so that reading a recorded run (``comparison``, ``projection``)
needs neither a GPU nor torch.
"""
