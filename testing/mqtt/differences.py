"""Known differences of brokers from the specifications, and their use of optional behaviour, by test with the reason."""

MOSQUITTO_2_0 = {
    "connect.keep_alive": "checked every 5 s only",
    "connect.malformed_disconnects[5]": "takes DISCONNECT with a reason that DISCONNECT does not have",
    "connect.wrong_properties": "takes authentication data without a method",
    "connect.wrong_will_properties": "takes will properties with values that are not allowed",
    "connect.packets_that_a_client_must_not_send": "takes SUBACK, UNSUBACK and PINGRESP from clients, as it is one itself when it bridges",
    "connect.malformed_pings": "does not look at flags and body of PINGREQ",
    "publish.malformed": "takes QoS 0 with DUP",
    "publish.malformed_acknowledgements": "does not look at flags and bytes after the end of acknowledgements",
    "publish.wrong_properties": "takes undefined payload formats, response topics with wildcards, and subscription identifiers",
    "publish.receive_maximum_of_a_client": "has one more message in flight after the first acknowledgement",
    "publish.receive_maximum_of_the_broker": "does not enforce its own receive maximum",
    "subscribe.overlapping_subscriptions[3.1.1]": "delivers by whichever subscription comes first, not the highest QoS",
    "subscribe.malformed[5]": "takes no-local on shared subscriptions",
    "subscribe.filters_that_are_none[5]": "takes shared subscriptions with an empty name or filter",
    "subscribe.shared_subscriptions_get_no_retained_messages": "sends them",
    "subscribe.a_shared_message_does_not_wait_for_an_absent_member": "queues for members that are away, as it may",
    "will.published_when_the_session_ends_before_the_delay": "waits for the delay alone",
    "will.published_when_a_clean_start_ends_the_session": "waits for the delay alone",
}

KNOWN = {"mosquitto": MOSQUITTO_2_0}
