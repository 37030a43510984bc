package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"warden": main,
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
		},
	})
}

// exits runs a command and checks its exit code: exits CODE COMMAND [ARG ...].
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG ...]")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code = -1
		if exit, ok := err.(interface{ ExitCode() int }); ok {
			code = exit.ExitCode()
		}
	}
	if want := args[0]; want != string(rune('0'+code)) {
		ts.Fatalf("%v exited with %d, want %s", args[1:], code, want)
	}
}
