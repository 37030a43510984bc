// Command warden is LM Warden's only binary. It holds flags, signals and exit
// codes; what the commands do is in package app.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"lmwarden/internal/app"
)

// Exit codes that scripts rely on.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

type commands struct {
	Serve    serveCommand    `cmd:"" help:"Run the gateway."`
	Sim      simCommand      `cmd:"" help:"Run a simulated vLLM box."`
	Demo     demoCommand     `cmd:"" help:"Simulated box, gateway and agents: shows what affinity changes, and ends."`
	Bench    benchCommands   `cmd:"" help:"Measure routing policies live: load a running box."`
	Simulate simulateCommand `cmd:"" help:"Measure routing policies in virtual time."`
	Top      topCommand      `cmd:"" help:"Show a gateway in the terminal: its replicas and conversations."`
	Health   healthCommand   `cmd:"" help:"Ask whether a gateway takes requests: for a container's health check."`
	Doctor   doctorCommand   `cmd:"" help:"Say what engines offer, what is missing for good routing, and how to mend it."`
	Config   configCommands  `cmd:"" help:"Check or print a configuration file."`
	Keys     keysCommands    `cmd:"" help:"API keys of clients, and the console's password."`
	Stats    statsCommands   `cmd:"" help:"The history of requests."`
	Version  versionCommand  `cmd:"" help:"Print version, commit and Go version."`

	Completion completionCommand `cmd:"" help:"Print completions for a shell."`
	Man        manCommand        `cmd:"" hidden:"" help:"Print the manual page."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run parses and runs one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var cli commands
	ended := -1 // set when kong itself answered, as --help does
	parser, err := kong.New(&cli,
		kong.Name("warden"),
		kong.Description("LM Warden sends the next turn of an agent conversation to the replica that holds its prefix cache."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { ended = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{
			"policies": strings.Join(app.Policies(), ", "),
			"presets":  strings.Join(app.SimPresets(), ", "),
			"arms":     strings.Join(app.SimulatedArms(), ", "),
			"dialects": strings.Join(app.BenchDialects(), ", "),
			"orders":   strings.Join(app.BenchOrders(), ", "),
			"formats":  app.ExportFormats(),
		},
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(app.IO{Out: stdout, Err: stderr}),
	)
	if err != nil {
		fmt.Fprintln(stderr, "warden:", err)
		return exitFailed
	}
	command, err := parser.Parse(args)
	if ended >= 0 {
		return ended
	}
	if err != nil {
		fmt.Fprintf(stderr, "warden: %v\n(warden --help lists the commands, warden COMMAND --help its flags)\n", err)
		return exitUsage
	}
	switch err := command.Run(); {
	case err == nil:
		return exitDone
	case errors.As(err, new(app.UsageError)):
		fmt.Fprintln(stderr, "warden:", err)
		return exitUsage
	default:
		fmt.Fprintln(stderr, "warden:", err)
		return exitFailed
	}
}

type serveCommand struct {
	Config      string   `placeholder:"FILE" help:"Configuration file (YAML); flags beside it win. It is read again on SIGHUP."`
	Engine      []string `placeholder:"URL" sep:"none" help:"An engine's base URL; repeat it for several servers of one model. It is asked for its models and its number of ranks."`
	Alias       []string `placeholder:"PATTERN" sep:"none" help:"A further name for the model, with * as in claude-*; repeatable."`
	Listen      string   `placeholder:"ADDR" help:"Address for clients (default 127.0.0.1:8100)."`
	AdminListen string   `placeholder:"ADDR" help:"Address of console, admin API and metrics (default 127.0.0.1:8101)."`
	Data        string   `placeholder:"DIR" help:"Folder of the conversation table; :memory: keeps nothing (default: the user's state folder)."`
	Policy      string   `placeholder:"NAME" help:"Routing policy: ${policies}."`
	LogLevel    string   `placeholder:"LEVEL" help:"debug, info, warn or error."`
	LogFormat   string   `placeholder:"FORMAT" help:"text or json."`
}

func (c serveCommand) Run(ctx context.Context, io app.IO) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	return app.Serve(ctx, io, app.ServeOptions(c), reload)
}

type demoCommand struct {
	Keep   bool          `help:"Stay up after the comparison, until interrupted."`
	Phase  time.Duration `default:"30s" placeholder:"TIME" help:"Length of each of the two phases."`
	Agents int           `default:"8" help:"Synthetic agents."`
}

func (c demoCommand) Run(ctx context.Context, io app.IO) error {
	return app.Demo(ctx, io, app.DemoOptions(c))
}

type configCommands struct {
	Check configCheckCommand `cmd:"" help:"Exit 0 when the file is sound, else 1 with messages."`
	Print configPrintCommand `cmd:"" help:"Print the effective configuration, secrets masked."`
}

type configCheckCommand struct {
	File string `arg:"" help:"The configuration file."`
}

func (c configCheckCommand) Run(io app.IO) error { return app.CheckConfig(io, c.File) }

type configPrintCommand struct {
	File string `arg:"" help:"The configuration file."`
}

func (c configPrintCommand) Run(io app.IO) error { return app.PrintConfig(io, c.File) }

type versionCommand struct{}

func (versionCommand) Run(io app.IO) error { return app.PrintVersion(io) }
