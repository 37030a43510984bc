package faults

import (
	"net"
	"os"
	"testing"
)

// childEnv names the part of this package that a child process plays: some
// faults need a process with limits of its own.
const childEnv = "LMWARDEN_FAULTS_CHILD"

var children = map[string]func() int{}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddress is an address on loopback that was free a moment ago.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
