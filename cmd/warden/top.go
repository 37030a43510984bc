package main

import (
	"context"
	"os"

	"lmwarden/internal/app"
)

type topCommand struct {
	Admin        string `default:"http://127.0.0.1:8101" placeholder:"URL" help:"Admin listener of the gateway (${default})."`
	User         string `default:"warden" placeholder:"NAME" help:"User to log in with; a gateway takes any, a proxy before it may not (${default})."`
	PasswordFile string `placeholder:"FILE" help:"File whose first line is the console's password; without it, the password is in the environment as WARDEN_ADMIN_PASSWORD."`
}

func (c topCommand) Run(ctx context.Context, io app.IO) error {
	return app.Top(ctx, io, app.TopOptions{
		Admin: c.Admin, User: c.User, PasswordFile: c.PasswordFile, Password: os.Getenv("WARDEN_ADMIN_PASSWORD"),
	})
}
