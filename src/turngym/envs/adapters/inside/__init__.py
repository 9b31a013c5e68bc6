"""What runs in a worker's own virtual environment, as a package called `inside`: nothing here imports turngym.

`serve` is the loop; a `*_side` module beside it speaks for one package.
"""
