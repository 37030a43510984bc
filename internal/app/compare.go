package app

import (
	"errors"
	"fmt"
	"os"

	"lmwarden/internal/bench/report"
	"lmwarden/internal/bench/results"
)

// CompareOptions are the arguments of warden bench compare.
type CompareOptions struct {
	A, B   string // folders of measurements, or their results.json
	HTML   string // file for a page, empty for none
	Unlike bool   // compare although workload or protocol differ
}

// Compare prints what the second measurement did to each column of the first.
// Settings that differ come first; it refuses those under which figures do not
// compare, unless it is told to go on.
func Compare(io IO, o CompareOptions) error {
	a, err := results.Read(o.A)
	if err != nil {
		return err
	}
	b, err := results.Read(o.B)
	if err != nil {
		return err
	}
	all, err := results.Compare(a, b)
	if unlike := (results.UnlikeError{}); errors.As(err, &unlike) {
		if !o.Unlike {
			return fmt.Errorf("%w, or compare all the same with --unlike", err)
		}
		all, err = results.CompareUnlike(a, b)
	}
	if err != nil {
		return err
	}
	differences := results.Differences(a, b)
	if o.HTML != "" {
		page, err := report.CompareHTML(o.A, o.B, differences, all)
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.HTML, page, 0o666); err != nil {
			return fmt.Errorf("write the comparison: %w", err)
		}
	}
	for _, d := range differences {
		note := ""
		if d.Unlike {
			note = "; the figures do not compare"
		}
		if _, err := fmt.Fprintf(io.Out, "- %s%s\n", d, note); err != nil {
			return err
		}
	}
	if len(differences) > 0 {
		fmt.Fprintln(io.Out)
	}
	_, err = fmt.Fprint(io.Out, results.ComparisonTable(all))
	return err
}

// machine is what a report says of where it was made.
func machine() report.Machine {
	version, commit, _ := buildVersion()
	return report.ThisMachine(fmt.Sprintf("warden %s (commit %s)", version, commit))
}
