package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Names of the files of a measurement in its folder.
const (
	JSONFile     = "results.json"
	TableFile    = "table.md"
	CSVFile      = "table.csv"
	RequestsFile = "requests.jsonl"
)

// Write puts the files of a measurement into a folder, which it makes.
func (r *Results) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	for _, file := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{JSONFile, func(w io.Writer) error {
			data, err := r.JSON()
			if err != nil {
				return err
			}
			_, err = w.Write(data)
			return err
		}},
		{TableFile, func(w io.Writer) error { _, err := io.WriteString(w, r.Table()); return err }},
		{CSVFile, r.WriteCSV},
		{RequestsFile, func(w io.Writer) error { return WriteRequests(w, r.Requests) }},
	} {
		if err := writeFile(filepath.Join(dir, file.name), file.write); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// Read reads a results.json, or the one in a folder.
func Read(path string) (*Results, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, JSONFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	r, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("read results %s: %w", path, err)
	}
	return r, nil
}

// Parse reads the content of a results.json and checks it. Keys that it does not
// know are left out.
func Parse(data []byte) (*Results, error) {
	var r Results
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, atLine(data, err)
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	return &r, nil
}

// atLine adds the line to an error of package json.
func atLine(data []byte, err error) error {
	offset := int64(-1)
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typed):
		offset = typed.Offset
	}
	if offset < 0 || offset > int64(len(data)) {
		return err
	}
	return fmt.Errorf("line %d: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
}

// validate reports everything that is wrong.
func (r *Results) validate() error {
	if r.Schema != Schema {
		return fmt.Errorf("schema is %d: this version reads %d; measure anew, or read it with the version that wrote it", r.Schema, Schema)
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(r.Arms) == 0 {
		bad("arms is empty: a measurement has at least one")
	}
	names := map[string]bool{}
	for i, arm := range r.Arms {
		if arm.Name == "" || names[arm.Name] {
			bad("arms[%d].name is %q: give each arm a name of its own", i, arm.Name)
		}
		names[arm.Name] = true
		sessions := map[int]bool{}
		for j := range arm.Steps {
			s := &arm.Steps[j]
			at := fmt.Sprintf("arms[%d].steps[%d]", i, j)
			if s.Sessions < 1 || sessions[s.Sessions] {
				bad("%s.sessions is %d: it must be at least 1, and another in each step", at, s.Sessions)
			}
			sessions[s.Sessions] = true
			errs = append(errs, s.Measures.validate(at)...)
			errs = append(errs, s.CI.notNegative(at+".ci")...)
			for k := range s.Runs {
				errs = append(errs, s.Runs[k].Measures.validate(fmt.Sprintf("%s.runs[%d]", at, k))...)
			}
		}
	}
	return errors.Join(errs...)
}

// notNegative is all that holds of half widths too: with two runs that of a share
// can be above 100.
func (m *Measures) notNegative(at string) []error {
	var errs []error
	for _, c := range Columns() {
		if v := c.Of(m); v != nil && *v < 0 {
			errs = append(errs, fmt.Errorf("%s.%s is %v: it cannot be negative", at, c.Name, *v))
		}
	}
	return errs
}

func (m *Measures) validate(at string) []error {
	errs := m.notNegative(at)
	for _, share := range []struct {
		name string
		v    *float64
	}{{"prefix_hit_percent", m.PrefixHitPercent}, {"stayed_percent", m.StayedPercent}} {
		if share.v != nil && *share.v > 100 {
			errs = append(errs, fmt.Errorf("%s.%s is %v: it is a share of 100", at, share.name, *share.v))
		}
	}
	return errs
}
