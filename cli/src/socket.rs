//! HTTP/1.1 over a Unix socket, for requests to an agent: one request per connection; the whole response is read.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the agent may pause within a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest head of a response, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most header lines.
const HEADERS_MAX: usize = 64;
/// The largest response, in bytes.
const RESPONSE_BYTES_MAX: u64 = 256 << 20;

/// Sends a request. Returns the status and the body; the error `InvalidData` if the response is not HTTP.
pub fn send(socket: &Path, method: &str, path_and_query: &str, body: Option<&[u8]>) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_write_timeout(Some(READ_TIMEOUT))?;
    let length = match body {
        Some(body) => format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()),
        None if method == "POST" => "content-length: 0\r\n".to_owned(),
        None => String::new(),
    };
    let request = format!(
        "{method} {path_and_query} HTTP/1.1\r\nhost: agent\r\naccept: application/json\r\nconnection: close\r\n{length}\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.write_all(body.unwrap_or_default())?;
    let mut bytes = Vec::new();
    // The agent closes the connection after its response; the framing ends the wait even if it does not.
    let (head, status, framing) = read_head(&mut stream, &mut bytes)?;
    let mut body = bytes.split_off(head);
    match framing {
        Framing::Length(length) => {
            let missing = length.saturating_sub(body.len() as u64);
            (&mut stream).take(missing).read_to_end(&mut body)?;
            if (body.len() as u64) < length {
                return Err(broken("the response is shorter than its content-length"));
            }
            body.truncate(length as usize);
        }
        Framing::UntilClose => {
            (&mut stream).take(RESPONSE_BYTES_MAX).read_to_end(&mut body)?;
        }
        Framing::Chunked => body = read_chunks(&mut stream, body)?,
    }
    Ok((status, body))
}

/// How a body ends.
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Reads the head. Returns its length, the status and the framing.
fn read_head(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<(usize, u16, Framing)> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        if let httparse::Status::Complete(head) = response.parse(bytes).map_err(|error| broken(&error.to_string()))? {
            let status = response.code.unwrap_or(0);
            return Ok((head, status, framing_of(response.headers)?));
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(broken("the response's head is too long"));
        }
        if read_more(stream, bytes)? == 0 {
            return Err(broken("the connection closed before a response"));
        }
    }
}

fn framing_of(headers: &[httparse::Header<'_>]) -> io::Result<Framing> {
    let find = |name: &str| {
        let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    };
    if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunked);
    }
    let Some(length) = find("content-length") else { return Ok(Framing::UntilClose) };
    let length: u64 = length.parse().map_err(|_| broken("content-length is not a number"))?;
    if length > RESPONSE_BYTES_MAX {
        return Err(broken("the response is too long"));
    }
    Ok(Framing::Length(length))
}

fn read_chunks(stream: &mut impl Read, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        match httparse::parse_chunk_size(&bytes[at..]).map_err(|_| broken("a chunk has no size"))? {
            httparse::Status::Complete((_, 0)) => return Ok(body),
            httparse::Status::Complete((used, size)) => {
                if body.len() as u64 + size > RESPONSE_BYTES_MAX {
                    return Err(broken("the response is too long"));
                }
                let (start, end) = (at + used, at + used + size as usize);
                while bytes.len() < end + 2 {
                    if read_more(stream, &mut bytes)? == 0 {
                        return Err(broken("the response broke off"));
                    }
                }
                body.extend_from_slice(&bytes[start..end]);
                bytes.drain(..end + 2);
                at = 0;
            }
            httparse::Status::Partial => {
                if read_more(stream, &mut bytes)? == 0 {
                    return Err(broken("the response broke off"));
                }
            }
        }
    }
}

fn read_more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 16 << 10];
    let count = stream.read(&mut buffer)?;
    bytes.extend_from_slice(&buffer[..count]);
    Ok(count)
}

fn broken(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

/// A text as part of a path or a query: percent-encoded except letters, digits and `-._~` (RFC 3986, unreserved).
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Responds to one connection with `answer`, then closes it. Returns the request and the result.
    fn exchange(answer: &[u8]) -> (String, io::Result<(u16, Vec<u8>)>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert!(read_more(&mut stream, &mut request).unwrap() > 0);
                }
                // The client may have seen enough and be gone.
                let _ = answer.chunks(5).try_for_each(|part| stream.write_all(part));
                String::from_utf8(request).unwrap()
            });
            let result = send(&path, "GET", "/v1/status", None);
            (server.join().unwrap(), result)
        })
    }

    #[track_caller]
    fn check(answer: &str, expected: Result<(u16, &str), &str>) {
        let (request, result) = exchange(answer.as_bytes());
        assert!(request.starts_with("GET /v1/status HTTP/1.1\r\n"), "{request}");
        match (result, expected) {
            (Ok((status, body)), Ok(expected)) => assert_eq!((status, std::str::from_utf8(&body).unwrap()), expected),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn each_framing_and_each_way_to_break_it() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", Ok((200, "hello")));
        check("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", Ok((404, "{}")));
        check("HTTP/1.1 200 OK\r\n\r\nuntil the end", Ok((200, "until the end")));
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n",
            Ok((200, "hello!")),
        );
        check("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", Err("shorter than"));
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", Err("broke off"));
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", Err("no size"));
        check("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", Err("too long"));
        check("SSH-2.0-x\r\n\r\n", Err("invalid"));
        check("", Err("before a response"));
    }

    #[test]
    fn encoding() {
        assert_eq!(encoded("net/dev a&b=ü~"), "net%2Fdev%20a%26b%3D%C3%BC~");
    }
}
