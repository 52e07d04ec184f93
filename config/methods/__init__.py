"""The settings of each method: one file per method, named after it."""

from config.method_settings import discovered

SETTINGS = discovered(__name__, __path__)
