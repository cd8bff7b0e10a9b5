"""How much of the nightly tests is run: environment variables shorten them."""

from __future__ import annotations

import os

FUZZ_S = float(os.environ.get("NIGHTLY_FUZZ_S", "300"))
"""Duration of fuzzing, for each target."""
SOAK_S = float(os.environ.get("NIGHTLY_SOAK_S", "600"))
"""Duration of the soak test, and of its control with a leak."""
HTTP_CASES = int(os.environ.get("NIGHTLY_HTTP_CASES", "20000"))
"""Number of mutated HTTP requests."""
SCHEMA_EXAMPLES = int(os.environ.get("NIGHTLY_SCHEMA_EXAMPLES", "5000"))
"""Number of requests that Schemathesis generates for each of the 37 routes. On two cores with much
other work 100 took 124 s and 300 took 359 s, so 5000 take less than two hours."""
