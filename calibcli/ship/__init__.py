"""Export calibrators to where models run. Every export is compared with the calibrator before it is written."""

from calibcli.ship.target import TARGETS, ExportRequest, export

__all__ = ["TARGETS", "ExportRequest", "export"]
