"""A package, so that every test can say ``from tests.helpers import ...``."""
