"""Where the checkout lies, for tests and for the scripts that they start."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
