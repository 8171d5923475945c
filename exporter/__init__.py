"""overlap-exporter: watches whether communication hides behind compute on a GPU node.

Kept empty of imports: a reader (`python -m exporter.reader`) pays for whatever stands here.
"""

__version__ = "0.1.0"
