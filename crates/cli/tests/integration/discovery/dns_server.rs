//! A DNS server that answers for `workers.test`: A records, and SRV records with names whose A records it has
//! too. Does not know workers.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

/// Seconds for which answers hold.
const TTL: u32 = 1;

pub struct DnsServer {
    address: SocketAddr,
    records: Arc<Mutex<(Vec<Ipv4Addr>, u16)>>,
}

impl DnsServer {
    /// Answers until the process ends.
    pub fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound");
        let records: Arc<Mutex<(Vec<Ipv4Addr>, u16)>> = Arc::default();
        let of_thread = records.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).expect("a question");
                let question = Message::from_vec(&buffer[..length]).expect("a message");
                let (ips, port) = of_thread.lock().expect("no panic").clone();
                let answer = answer(&question, &ips, port).to_vec().expect("it can be written");
                socket.send_to(&answer, from).expect("sent");
            }
        });
        Self { address, records }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, ips: &[Ipv4Addr], port: u16) {
        *self.records.lock().expect("no panic") = (ips.to_vec(), port);
    }
}

fn answer(question: &Message, ips: &[Ipv4Addr], port: u16) -> Message {
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    let asked = question.queries.first().expect("a query").clone();
    let name = asked.name().to_ascii();
    // Names of SRV records are the addresses themselves: 127-0-0-1.test.
    let named = |ip: &Ipv4Addr| format!("{}.test.", ip.to_string().replace('.', "-"));
    let add = |answer: &mut Message, data: RData| {
        answer.add_answer(Record::from_rdata(asked.name().clone(), TTL, data));
    };
    match asked.query_type() {
        RecordType::A if name == "workers.test." => {
            ips.iter().for_each(|ip| add(&mut answer, RData::A(A(*ip))));
        }
        RecordType::A => {
            ips.iter().filter(|ip| name == named(ip)).for_each(|ip| add(&mut answer, RData::A(A(*ip))))
        }
        RecordType::SRV if name == "_throng._tcp.workers.test." => {
            for ip in ips {
                let target = Name::from_ascii(named(ip)).expect("a name");
                add(&mut answer, RData::SRV(SRV::new(0, 0, port, target)));
            }
        }
        _ => {}
    }
    answer.add_query(asked);
    answer.metadata.response_code = ResponseCode::NoError;
    answer
}
