/* Reads a usbredir stream from standard input with the usbredir project's own parser, says every packet again with the same
   project's writer, and writes that to standard output: the same bytes, if the stream is right.

   Argument: who the stream is for, "host" or "guest". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <usbredirparser.h>

struct pipe {
    unsigned char *bytes;
    size_t start, end;
};

static struct usbredirparser *reader, *writer;
static struct pipe to_reader, from_reader, from_writer;

static void put(struct pipe *pipe, const void *data, size_t count)
{
    pipe->bytes = realloc(pipe->bytes, pipe->end + count);
    memcpy(pipe->bytes + pipe->end, data, count);
    pipe->end += count;
}

static int take(struct pipe *pipe, void *data, int count)
{
    size_t left = pipe->end - pipe->start;
    int now = left < (size_t)count ? (int)left : count;
    memcpy(data, pipe->bytes + pipe->start, now);
    pipe->start += now;
    return now;
}

static int reader_read(void *priv, uint8_t *data, int count) { (void)priv; return take(&to_reader, data, count); }
static int reader_write(void *priv, uint8_t *data, int count) { (void)priv; put(&from_reader, data, count); return count; }
static int writer_read(void *priv, uint8_t *data, int count) { (void)priv; return take(&from_reader, data, count); }
static int writer_write(void *priv, uint8_t *data, int count) { (void)priv; put(&from_writer, data, count); return count; }
static void say(void *priv, int level, const char *what) { (void)priv; if (level <= usbredirparser_warning) fprintf(stderr, "%s\n", what); }

#define PLAIN(name) static void name(void *priv) { (void)priv; usbredirparser_send_##name(writer); }
#define INFO(name) static void name(void *priv, struct usb_redir_##name##_header *h) { (void)priv; usbredirparser_send_##name(writer, h); }
#define WITH_ID(name) static void name(void *priv, uint64_t id, struct usb_redir_##name##_header *h) { (void)priv; usbredirparser_send_##name(writer, id, h); }
#define DATA(name) static void name(void *priv, uint64_t id, struct usb_redir_##name##_header *h, uint8_t *data, int count) { (void)priv; usbredirparser_send_##name(writer, id, h, data, count); free(data); }

PLAIN(device_disconnect) PLAIN(reset) PLAIN(filter_reject)
INFO(device_connect) INFO(interface_info) INFO(ep_info)
WITH_ID(set_configuration) WITH_ID(configuration_status) WITH_ID(set_alt_setting) WITH_ID(get_alt_setting)
WITH_ID(alt_setting_status) WITH_ID(start_iso_stream) WITH_ID(stop_iso_stream) WITH_ID(iso_stream_status)
WITH_ID(start_interrupt_receiving) WITH_ID(stop_interrupt_receiving) WITH_ID(interrupt_receiving_status)
WITH_ID(alloc_bulk_streams) WITH_ID(free_bulk_streams) WITH_ID(bulk_streams_status)
WITH_ID(start_bulk_receiving) WITH_ID(stop_bulk_receiving) WITH_ID(bulk_receiving_status)
DATA(control_packet) DATA(bulk_packet) DATA(iso_packet) DATA(interrupt_packet) DATA(buffered_bulk_packet)

static void hello(void *priv, struct usb_redir_hello_header *h) { (void)priv; (void)h; }
static void get_configuration(void *priv, uint64_t id) { (void)priv; usbredirparser_send_get_configuration(writer, id); }
static void cancel_data_packet(void *priv, uint64_t id) { (void)priv; usbredirparser_send_cancel_data_packet(writer, id); }
/* Said by the parser itself, never by its user. */
static void device_disconnect_ack(void *priv) { (void)priv; fprintf(stderr, "ack\n"); }
static void filter_filter(void *priv, struct usbredirfilter_rule *rules, int count)
{
    (void)priv;
    usbredirparser_send_filter_filter(writer, rules, count);
    free(rules);
}

#define SET(name) reader->name##_func = name;

int main(int argc, char **argv)
{
    unsigned char buffer[4096];
    size_t count;
    uint32_t caps[USB_REDIR_CAPS_SIZE] = { 0xff };
    int is_host = argc > 1 && strcmp(argv[1], "host") == 0;

    reader = usbredirparser_create();
    writer = usbredirparser_create();
    reader->log_func = writer->log_func = say;
    reader->read_func = reader_read;
    reader->write_func = reader_write;
    writer->read_func = writer_read;
    writer->write_func = writer_write;
    writer->hello_func = hello;
    SET(hello) SET(device_connect) SET(device_disconnect) SET(reset) SET(interface_info) SET(ep_info)
    SET(set_configuration) SET(get_configuration) SET(configuration_status) SET(set_alt_setting) SET(get_alt_setting)
    SET(alt_setting_status) SET(start_iso_stream) SET(stop_iso_stream) SET(iso_stream_status)
    SET(start_interrupt_receiving) SET(stop_interrupt_receiving) SET(interrupt_receiving_status)
    SET(alloc_bulk_streams) SET(free_bulk_streams) SET(bulk_streams_status) SET(cancel_data_packet)
    SET(control_packet) SET(bulk_packet) SET(iso_packet) SET(interrupt_packet) SET(filter_reject) SET(filter_filter)
    SET(device_disconnect_ack) SET(start_bulk_receiving) SET(stop_bulk_receiving) SET(bulk_receiving_status)
    SET(buffered_bulk_packet)
    usbredirparser_init(reader, "reader", caps, USB_REDIR_CAPS_SIZE, is_host ? usbredirparser_fl_usb_host : 0);
    usbredirparser_init(writer, "writer", caps, USB_REDIR_CAPS_SIZE, is_host ? 0 : usbredirparser_fl_usb_host);
    /* The reader's hello tells the writer what it may say. */
    usbredirparser_do_write(reader);
    usbredirparser_do_read(writer);
    while ((count = fread(buffer, 1, sizeof buffer, stdin)) > 0)
        put(&to_reader, buffer, count);
    while (to_reader.start < to_reader.end)
        if (usbredirparser_do_read(reader) != 0)
            return 1;
    usbredirparser_do_write(writer);
    fwrite(from_writer.bytes, 1, from_writer.end, stdout);
    return 0;
}
