"""Calibrators where models run: targets, each compared before it is written, and the proof of what runs there."""

from calibcli.ship.exporting import export
from calibcli.ship.target import TARGETS, Job
from calibcli.ship.verifying import verify

__all__ = ["TARGETS", "Job", "export", "verify"]
