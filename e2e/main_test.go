package e2e

import (
	"os"
	"testing"

	"lmwarden/e2e/internal/wardentest"
)

// warden is built by TestMain.
var warden wardentest.Binary

func TestMain(m *testing.M) { os.Exit(wardentest.Main(m, &warden)) }
