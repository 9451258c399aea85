"""`python -m gligabao`: the same as the command `gligabao`."""

from gligabao.cli import main

main(prog_name="gligabao")
