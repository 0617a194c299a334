"""The stand-in of the Hub, for the tests in this folder."""

from tests.hub_server import hub

__all__ = ["hub"]
