// A client built on grpc-go, for calls whose messages are bytes.
//
//	client ADDRESS [AUTHORITY KEY]
//
// It reads a call from each line of its input, `unary METHOD MESSAGE` or `stream METHOD MESSAGE…`, with messages in
// base64, and answers in a line: `ok MESSAGE…` or `error CODE TEXT`. With a file of an AUTHORITY the connection is TLS,
// and every call carries the KEY.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const patience = 40 * time.Second

// raw leaves messages as they are.
type raw struct{}

func (raw) Name() string                              { return "proto" }
func (raw) Marshal(value interface{}) ([]byte, error) { return *value.(*[]byte), nil }
func (raw) Unmarshal(data []byte, into interface{}) error {
	*into.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func unary(ctx context.Context, conn *grpc.ClientConn, method string, messages [][]byte) ([][]byte, error) {
	var answer []byte
	err := conn.Invoke(ctx, method, &messages[0], &answer)
	return [][]byte{answer}, err
}

func stream(ctx context.Context, conn *grpc.ClientConn, method string, messages [][]byte) ([][]byte, error) {
	desc := grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	call, err := conn.NewStream(ctx, &desc, method)
	if err != nil {
		return nil, err
	}
	for index := range messages {
		if err := call.SendMsg(&messages[index]); err != nil {
			break // what the server said comes below
		}
	}
	if err := call.CloseSend(); err != nil {
		return nil, err
	}
	var answers [][]byte
	for {
		var answer []byte
		switch err := call.RecvMsg(&answer); err {
		case nil:
			answers = append(answers, answer)
		case io.EOF:
			return answers, nil
		default:
			return answers, err
		}
	}
}

func ask(conn *grpc.ClientConn, key string, words []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	var messages [][]byte
	for _, word := range words[2:] {
		message, err := base64.StdEncoding.DecodeString(word)
		fail(err)
		messages = append(messages, message)
	}
	call := map[string]func(context.Context, *grpc.ClientConn, string, [][]byte) ([][]byte, error){
		"unary": unary, "stream": stream,
	}[words[0]]
	answers, err := call(ctx, conn, words[1], messages)
	if err != nil {
		told := status.Convert(err)
		return fmt.Sprintf("error %d %s", told.Code(), told.Message())
	}
	line := "ok"
	for _, answer := range answers {
		line += " " + base64.StdEncoding.EncodeToString(answer)
	}
	return line
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	security, key := grpc.WithInsecure(), ""
	if len(os.Args) > 2 {
		trusted, err := credentials.NewClientTLSFromFile(os.Args[2], "")
		fail(err)
		security, key = grpc.WithTransportCredentials(trusted), os.Args[3]
	}
	conn, err := grpc.Dial(os.Args[1], security, grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	fail(err)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		fmt.Println(ask(conn, key, strings.Split(lines.Text(), " ")))
	}
	fail(lines.Err())
}
