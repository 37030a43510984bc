package server

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// tool is a function that the client offers, whatever its dialect calls it.
type tool struct {
	name        string
	description any // a string, or nil when the client gave none
	parameters  json.RawMessage
}

// toolCall is a call in an answer, or one in the history.
type toolCall struct {
	name      string
	arguments string // JSON
}

// template is the tool as the chat template prints it.
func (t tool) template() object {
	parameters := any(nil)
	if len(t.parameters) > 0 {
		if v, err := parseOrdered(t.parameters); err == nil {
			parameters = v
		}
	}
	return object{{"type", "function"}, {"function", object{
		{"name", t.name}, {"description", t.description}, {"parameters", parameters},
	}}}
}

// shells are the names under which agent clients offer a command line. Running a
// harmless command is the call that every one of them accepts without a question.
var shells = []string{"bash", "exec_command", "shell", "shell_command", "local_shell", "run_shell_command", "run_commands", "run_command", "execute_command", "terminal"}

// chooseCall answers a tool marker with a call of one of the offered tools; false when
// none fits.
func chooseCall(w wishes, offered []tool) (*toolCall, bool) {
	if !w.tool || len(offered) == 0 {
		return nil, false
	}
	chosen := -1
	if w.toolName != "" {
		chosen = slices.IndexFunc(offered, func(t tool) bool { return t.name == w.toolName })
		if chosen < 0 {
			chosen = slices.IndexFunc(offered, func(t tool) bool { return strings.EqualFold(t.name, w.toolName) })
		}
	} else {
		for _, shell := range shells {
			chosen = slices.IndexFunc(offered, func(t tool) bool { return strings.EqualFold(t.name, shell) })
			if chosen >= 0 {
				break
			}
		}
		if chosen < 0 {
			chosen = 0
		}
	}
	if chosen < 0 {
		return nil, false
	}
	t := offered[chosen]
	arguments := string(w.arguments)
	if w.arguments == nil {
		var s schema
		arguments = "{}"
		if json.Unmarshal(t.parameters, &s) == nil && s.kind() == "object" {
			arguments = string(appendJSON(nil, s.least("", 0), spaced))
		}
	}
	// Spelled as the chat template will print the call when it comes back in the
	// history: then the next prompt extends this answer token by token.
	return &toolCall{name: t.name, arguments: pythonJSON([]byte(arguments))}, true
}

// schema is the part of JSON Schema that is needed to make up a valid value.
type schema struct {
	Type       json.RawMessage   `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []json.RawMessage `json:"enum"`
	Const      json.RawMessage   `json:"const"`
	Minimum    *float64          `json:"minimum"`
	MinItems   int               `json:"minItems"`
	AnyOf      []schema          `json:"anyOf"`
	OneOf      []schema          `json:"oneOf"`
}

func (s schema) kind() string {
	var one string
	if json.Unmarshal(s.Type, &one) == nil {
		return one
	}
	var many []string
	if json.Unmarshal(s.Type, &many) == nil && len(many) > 0 {
		return many[0]
	}
	if s.Properties != nil {
		return "object"
	}
	return "string"
}

// maxDepth stops a schema that refers to itself without end.
const maxDepth = 16

// least returns the smallest value that the schema allows for a field called name.
func (s schema) least(name string, depth int) any {
	switch {
	case len(s.Const) > 0:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AnyOf) > 0 && depth < maxDepth:
		return s.AnyOf[0].least(name, depth+1)
	case len(s.OneOf) > 0 && depth < maxDepth:
		return s.OneOf[0].least(name, depth+1)
	}
	switch s.kind() {
	case "object":
		v := object{}
		for _, key := range s.Required {
			if depth < maxDepth {
				v = append(v, field{key, s.Properties[key].least(key, depth+1)})
			}
		}
		return v
	case "array":
		v := list{}
		if s.Items == nil || depth >= maxDepth {
			return v
		}
		if isCommand(name) {
			if s.Items.kind() == "string" && !strings.HasSuffix(name, "s") {
				return list{"echo", "hi"} // one command as its words
			}
			return append(v, s.Items.least(strings.TrimSuffix(name, "s"), depth+1))
		}
		for range s.MinItems {
			v = append(v, s.Items.least(name, depth+1))
		}
		return v
	case "integer", "number":
		if s.Minimum != nil && *s.Minimum > 1 {
			return json.Number(strconv.FormatFloat(math.Ceil(*s.Minimum), 'f', -1, 64))
		}
		return 1
	case "boolean":
		return false
	case "null":
		return nil
	}
	if isCommand(name) {
		return "echo hi"
	}
	return "hi"
}

func isCommand(name string) bool {
	return slices.Contains([]string{"command", "commands", "cmd"}, name)
}
