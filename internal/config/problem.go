package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Problem is one thing that is wrong, and where.
type Problem struct {
	File         string // empty when the value came from elsewhere, as from a flag
	Line, Column int    // from 1; 0 when the file has no place for it
	Path         string // models[0].policy; empty for the file as a whole
	Message      string // what is wrong and what is allowed
	Source       string // the line itself
}

// maxShown is the longest line, in characters, that a message shows.
const maxShown = 200

// Error has the place, the message, and below them the line with a mark under
// the column.
func (p Problem) Error() string {
	var b strings.Builder
	switch {
	case p.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Message)
	if p.Line > 0 && utf8.RuneCountInString(p.Source) <= maxShown {
		number := fmt.Sprintf("%5d", p.Line)
		fmt.Fprintf(&b, "\n%s | %s\n%s | %s^", number, p.Source, strings.Repeat(" ", len(number)), indent(p.Source, p.Column))
	}
	return b.String()
}

// indent is the blank that stands before a column, with the line's own tabs so
// that the mark lines up.
func indent(line string, column int) string {
	var b strings.Builder
	for _, r := range line {
		if column--; column < 1 {
			break
		}
		if r != '\t' {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Problems is every problem that was found, in the order of the file.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// err is the problems as an error, nil when there are none.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return ps
}

// place is a position in a file, in lines and characters from 1.
type place struct{ line, column int }

// source is the file that a Config was read from; the zero source is none.
type source struct {
	name   string
	lines  []string
	places map[string]place // of the values, by path
}

// problem describes what is wrong at a place.
func (s *source) problem(at place, path, format string, args ...any) Problem {
	p := Problem{File: s.name, Path: path, Message: fmt.Sprintf(format, args...)}
	if at.line >= 1 && at.line <= len(s.lines) {
		line := hideSecret(s.lines[at.line-1], path)
		p.Line, p.Source = at.line, line
		p.Column = min(max(at.column, 1), utf8.RuneCountInString(line)+1)
	}
	return p
}

var (
	// literalKey matches a secret that stands in the file itself, or one that was put
	// where its hash belongs.
	literalKey = regexp.MustCompile(`(\b(?:api_key|password|hash|value)["']?\s*:\s*)[^\s].*`)
	// userInfo matches the user and password of a URL.
	userInfo = regexp.MustCompile(`(://)[^/\s]*@`)
)

// hideSecret masks a secret that stands in a line: messages end up in logs and
// in bug reports.
func hideSecret(line, path string) string {
	masked := literalKey.ReplaceAllString(line, "${1}"+Mask)
	masked = userInfo.ReplaceAllString(masked, "${1}"+Mask+"@")
	if key := path[strings.LastIndex(path, ".")+1:]; masked == line && (key == "api_key" || key == "password" || key == "hash" || key == "value") {
		return Mask
	}
	return masked
}

// find is the place of a path, or of the nearest one above it that the file
// has.
func (s *source) find(path string) place {
	for {
		if at, ok := s.places[path]; ok {
			return at
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return place{}
		}
		path = path[:i]
	}
}

// clip shortens a text of the file for a message.
func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// nearest is the allowed word that is most like a wrong one, or empty when none
// is close.
func nearest(word string, allowed []string) string {
	best, least := "", 3
	for _, a := range allowed {
		if d := distance(word, a); d < least && d < len(a) {
			best, least = a, d
		}
	}
	return best
}

// oneOf says which words are allowed, the likely one first.
func oneOf(word string, allowed []string) string {
	list := strings.Join(allowed, ", ")
	if n := nearest(word, allowed); n != "" {
		return fmt.Sprintf("did you mean %q? allowed: %s", n, list)
	}
	return "allowed: " + list
}

// distance is the number of letters to insert, remove or replace (Levenshtein).
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
