"""Shared by the tests of all packages: real servers, faulty networks."""
