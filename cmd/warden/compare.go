package main

import "lmwarden/internal/app"

type compareCommand struct {
	A      string `arg:"" help:"Folder of a measurement, or its results.json."`
	B      string `arg:"" help:"The other one."`
	HTML   string `name:"html" placeholder:"FILE" help:"Write the comparison as a page, too."`
	Unlike bool   `help:"Compare although workload or protocol differ; what differs is said first."`
}

// Help is shown above the flags.
func (compareCommand) Help() string {
	return `Sets two measurements side by side: each column of each arm and step that both have, with the 95% interval of the difference and a verdict on the second. Where each has one arm, these are compared whatever their names. A verdict needs at least two runs on each side (--seeds, --repeat).`
}

func (c compareCommand) Run(io app.IO) error { return app.Compare(io, app.CompareOptions(c)) }
