// Package browser opens the console of a whole gateway in a headless Chromium.
package browser

import (
	"os"
	"testing"

	"lmwarden/e2e/internal/wardentest"
)

// warden is built by TestMain.
var warden wardentest.Binary

func TestMain(m *testing.M) { os.Exit(wardentest.Main(m, &warden)) }
