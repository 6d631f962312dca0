"""Calibrators where models run: targets, each compared with the calibrator before it is written."""

from calibcli.ship.target import TARGETS, ExportRequest, export

__all__ = ["TARGETS", "ExportRequest", "export"]
