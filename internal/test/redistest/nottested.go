package redistest

import (
	"fmt"
	"os"
	"testing"
)

// NotTested skips a test that cannot run here, and says loudly what is missing. If everything has
// to run (RELOCK_REQUIRE_REDIS=1, as under make test and in CI), NotTested fails the test instead.
func NotTested(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("RELOCK_REQUIRE_REDIS") == "1" {
		t.Fatalf("redistest: NOT TESTED, and RELOCK_REQUIRE_REDIS=1: %s", what)
	}
	t.Skipf("redistest: NOT TESTED: %s; RELOCK_REQUIRE_REDIS=1 turns this into a failure", what)
}
