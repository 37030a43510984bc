// Package app builds the process: it joins the other packages into a running
// gateway and carries out each command. It decides nothing about routing and
// knows no wire format; flags, signals and exit codes are package main's.
package app

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"

	"lmwarden/internal/routing"
)

// IO is where a command writes: results to Out, everything else to Err.
type IO struct {
	Out, Err io.Writer
}

// UsageError is a command line that makes no sense; the process exits with 2.
type UsageError struct{ Message string }

func (e UsageError) Error() string { return e.Message }

func usageErrorf(format string, args ...any) error {
	return UsageError{fmt.Sprintf(format, args...)}
}

// Policies lists the routing policies by name.
func Policies() []string { return routing.Policies() }

// version and commit are set by the release build (-ldflags -X).
var version, commit string

// buildVersion is the version, commit and Go version of this binary. What the
// release build did not set comes from the module's build information.
func buildVersion() (v, c, goVersion string) {
	v, c = version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && c == "" {
				c = s.Value
			}
		}
	}
	if v == "" {
		v = "devel"
	}
	if c == "" {
		c = "unknown"
	}
	return v, c, runtime.Version()
}

// PrintVersion writes one line.
func PrintVersion(io IO) error {
	v, c, g := buildVersion()
	_, err := fmt.Fprintf(io.Out, "warden %s (commit %s, %s)\n", v, c, g)
	return err
}

// listening logs the address of a listener under the key that scripts and tests
// read when the port was chosen by the system.
func listening(log *slog.Logger, listener, url string) {
	log.Info("listening", "listener", listener, "url", url)
}
