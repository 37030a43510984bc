package app

import (
	"context"
	"os"

	"golang.org/x/term"

	"lmwarden/internal/config"
	"lmwarden/internal/top"
)

// TopOptions are the flags of warden top.
type TopOptions struct {
	Admin        string // address of the admin listener
	User         string
	PasswordFile string
	// Password is used when there is no file.
	Password string
}

// Top shows a gateway on the terminal that In and Out are, or writes its tables
// once when they are none.
func Top(ctx context.Context, io IO, o TopOptions) error {
	password := o.Password
	if o.PasswordFile != "" {
		var err error
		if password, err = config.NewSecret("file:" + o.PasswordFile).Reveal(); err != nil {
			return err
		}
	}
	client, err := top.NewClient(o.Admin, o.User, password)
	if err != nil {
		return UsageError{err.Error()}
	}
	defer client.Close()
	out, ok := io.Out.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) || !term.IsTerminal(int(os.Stdin.Fd())) || os.Getenv("TERM") == "dumb" {
		return top.Print(ctx, client, io.Out)
	}
	return top.Run(ctx, client, o.Admin, os.Stdin, out, os.Environ())
}
