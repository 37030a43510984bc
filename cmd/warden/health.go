package main

import (
	"context"

	"lmwarden/internal/app"
)

type healthCommand struct {
	URL string `default:"http://127.0.0.1:8100" placeholder:"URL" help:"Address for clients of the gateway (${default})."`
}

func (c healthCommand) Run(ctx context.Context) error { return app.Health(ctx, c.URL) }
