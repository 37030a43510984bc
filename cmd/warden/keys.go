package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"

	"lmwarden/internal/app"
)

type keysCommands struct {
	New      keysNewCommand      `cmd:"" help:"Draw an API key: the key on standard output, its entry for the configuration on standard error."`
	Password keysPasswordCommand `cmd:"" help:"Hash the password of the console, for admin.password."`
}

type keysNewCommand struct {
	Name string `default:"client" placeholder:"NAME" help:"Who gets it."`
}

func (c keysNewCommand) Run(io app.IO) error { return app.NewKey(io, c.Name) }

type keysPasswordCommand struct{}

// Run asks twice on a terminal, and reads a line elsewhere.
func (keysPasswordCommand) Run(io app.IO) error {
	in := int(os.Stdin.Fd())
	if !term.IsTerminal(in) {
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if line == "" && err != nil {
			return fmt.Errorf("read the password from standard input: %w", err)
		}
		return app.NewPassword(io, strings.TrimRight(line, "\r\n"))
	}
	ask := func(prompt string) (string, error) {
		fmt.Fprint(io.Err, prompt)
		word, err := term.ReadPassword(in)
		fmt.Fprintln(io.Err)
		return string(word), err
	}
	first, err := ask("Password: ")
	if err != nil {
		return err
	}
	second, err := ask("Again: ")
	if err != nil {
		return err
	}
	if first != second {
		return errors.New("the two differ")
	}
	return app.NewPassword(io, first)
}
