// Package faults holds tests only: the faults of peers and of engines, each
// reproduced against a whole gateway, with scripted engines on loopback and
// clients that behave as badly as real ones. docs/faults.md lists them. What one
// package can show by itself is tested there; here stands what needs all of it.
//
// Time is real in this package, since sockets, kernels and timers of other
// programs are what these faults are made of. No test sleeps to be on the safe
// side: each waits for what it expects, with a deadline. Where time passes for
// its own sake, it is what is tested, or the chaos run at its mischief.
package faults

import (
	"flag"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childEnv)]; ok {
		os.Exit(child())
	}
	// Most of these tests wait most of the time, so more of them run at once than
	// there are processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen. It is no measure of
// speed: those tests that are say what they allow.
const patience = 20 * time.Second

// await polls until check succeeds.
func await(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := eventually(check); err != nil {
		t.Fatalf("waited %s for %s: %v", patience, what, err)
	}
}

// eventually is await for goroutines that must not end the test. The error is
// the check's last one.
func eventually(check func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return err
		}
	}
}

// receive takes from a channel what must come.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
		panic("unreachable")
	}
}
