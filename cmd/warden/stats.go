package main

import (
	"context"

	"lmwarden/internal/app"
)

type statsCommands struct {
	Export statsExportCommand `cmd:"" help:"Write the requests of the history as CSV or JSON."`
}

type statsExportCommand struct {
	Since  string `placeholder:"WHEN" help:"Only requests that ended since then: a length of time up to now (24h, 7d) or a time (2026-10-04T08:00:00Z)."`
	Model  string `placeholder:"NAME" help:"Only requests of this model."`
	Format string `default:"csv" placeholder:"FORMAT" help:"${formats} (${default})."`
	Data   string `placeholder:"DIR" help:"The gateway's data folder (default: the user's state folder)."`
	Config string `placeholder:"FILE" help:"The gateway's configuration file, which names its data folder."`
}

func (c statsExportCommand) Run(ctx context.Context, io app.IO) error {
	return app.ExportStats(ctx, io, app.ExportOptions(c))
}
