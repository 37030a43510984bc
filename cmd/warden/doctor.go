package main

import (
	"context"

	"lmwarden/internal/app"
)

type doctorCommand struct {
	Config string   `placeholder:"FILE" help:"Examine the engines of a configuration file."`
	Engine []string `placeholder:"URL" sep:"none" help:"An engine's base URL; repeatable."`
	Listen string   `placeholder:"ADDR" help:"Then listen to clients here (on loopback), pass their requests on to the first engine, and say what they send."`
}

func (c doctorCommand) Run(ctx context.Context, io app.IO) error {
	return app.Doctor(ctx, io, app.DoctorOptions(c))
}
