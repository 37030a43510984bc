package app

import (
	"fmt"

	"lmwarden/internal/config"
)

// CheckConfig reports what is wrong with a file.
func CheckConfig(io IO, file string) error {
	cfg, err := load(file)
	if err != nil {
		return err
	}
	models := "1 model"
	if n := len(cfg.Models); n != 1 {
		models = fmt.Sprintf("%d models", n)
	}
	_, err = fmt.Fprintf(io.Out, "%s is sound: %s\n", file, models)
	return err
}

// PrintConfig writes a file's effective configuration, secrets masked.
func PrintConfig(io IO, file string) error {
	cfg, err := load(file)
	if err != nil {
		return err
	}
	text, err := cfg.Print()
	if err != nil {
		return err
	}
	_, err = io.Out.Write(text)
	return err
}

func load(file string) (*config.Config, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return cfg, cfg.Validate(Policies())
}

// configure makes the configuration of a gateway from a file, if one is given,
// and from flags, which win.
func configure(o ServeOptions) (*config.Config, error) {
	cfg := config.Default()
	switch {
	case o.Config != "" && len(o.Engine) > 0:
		return nil, usageErrorf("--config and --engine exclude each other: list the engines in the file")
	case o.Config != "":
		var err error
		if cfg, err = config.Load(o.Config); err != nil {
			return nil, err
		}
	case len(o.Engine) > 0:
		m := config.Model{Aliases: o.Alias}
		for _, url := range o.Engine {
			e := config.Engine{}
			if err := e.URL.UnmarshalText([]byte(url)); err != nil {
				return nil, usageErrorf("--engine %s: %v", url, err)
			}
			m.Engines = append(m.Engines, e)
		}
		cfg.Models = []config.Model{m}
	default:
		return nil, usageErrorf("nothing to serve: give --engine URL (such as http://127.0.0.1:8000) or --config FILE")
	}
	if o.Config != "" && len(o.Alias) > 0 {
		return nil, usageErrorf("--alias goes with --engine: list the aliases in the file")
	}
	override(&cfg.Listen, o.Listen)
	override(&cfg.Admin.Listen, o.AdminListen)
	override(&cfg.Data, o.Data)
	override(&cfg.Log.Level, o.LogLevel)
	override(&cfg.Log.Format, o.LogFormat)
	for i := range cfg.Models {
		override(&cfg.Models[i].Policy, o.Policy)
	}
	cfg.Fill()
	err := cfg.Validate(Policies())
	if err != nil && o.Config == "" {
		err = UsageError{err.Error()}
	}
	return cfg, err
}

func override(value *string, flag string) {
	if flag != "" {
		*value = flag
	}
}
