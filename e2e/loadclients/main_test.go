// Package loadclients runs load clients that others wrote through the gateway to
// the simulator: what they count must be what the gateway and the engine count.
package loadclients

import (
	"os"
	"testing"

	"lmwarden/e2e/internal/wardentest"
)

// warden is built by TestMain.
var warden wardentest.Binary

func TestMain(m *testing.M) {
	if os.Getenv("LOADCLIENTS_BIN") == "" {
		os.Exit(m.Run()) // every test skips itself
	}
	os.Exit(wardentest.Main(m, &warden))
}
